// The (o, m, l) parts of attention of one token of each sequence, not normalised: o = sum_s exp(score_s - m) v[s],
// m = the largest score, l = sum_s exp(score_s - m), over the keys of one split of the sequence's page list.
// One invocation for each (split, g, b): the H / G query heads of g share its loads of keys and values.
override D4: u32;  // D / 4
override H: u32;
override G: u32;
override PAGE: u32;
override SPLITS: u32;  // parts a page list is divided into, at most
override SCALE: f32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;       // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> sequences: array<vec4<u32>>;    // [B]: first list entry, entries, first token, tokens
@group(0) @binding(3) var<storage, read> pages: array<vec2<u32>>;        // page, its first position
@group(0) @binding(4) var<storage, read> q: array<vec4<f32>>;            // [T, H, D4]
@group(0) @binding(5) var<storage, read> k_pages: array<Kv4>;            // [pages, G, PAGE, D4]
@group(0) @binding(6) var<storage, read> v_pages: array<Kv4>;            // [pages, G, PAGE, D4]
@group(0) @binding(7) var<storage, read_write> parts: array<vec4<f32>>;  // [B, SPLITS, H, D4 + 1]: o, then (m, l, 0, 0)

const R = H / G;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let split = id.x;
    let g = id.y;
    let b = id.z;
    if b >= step.n_sequences { return; }
    let sequence = sequences[b];
    let each = (sequence.y + SPLITS - 1u) / SPLITS;
    let first = split * each;
    if first >= sequence.y { return; }
    let t = sequence.z;
    let position = tokens[t].y;
    let head = t * H + g * R;

    for (var r = 0u; r < R; r += 1u) {
        var out: array<vec4<f32>, D4>;
        for (var i = 0u; i < D4; i += 1u) { out[i] = vec4(0.0); }
        var top = LOWEST;
        var sum = 0.0;
        for (var e = sequence.x + first; e < sequence.x + min(first + each, sequence.y); e += 1u) {
            let start = pages[e].y;
            if start > position { continue; }
            let base = (pages[e].x * G + g) * PAGE * D4;
            var scores: array<f32, PAGE>;
            var page_top = LOWEST;
            for (var j = 0u; j < PAGE; j += 1u) {
                var score = 0.0;
                for (var i = 0u; i < D4; i += 1u) {
                    score = add_dot(score, q[(head + r) * D4 + i] * SCALE, kv_unpack(k_pages[base + j * D4 + i]));
                }
                scores[j] = select(LOWEST, score, start + j <= position);
                page_top = max(page_top, scores[j]);
            }
            var page_sum = 0.0;
            var page_out: array<vec4<f32>, D4>;
            for (var i = 0u; i < D4; i += 1u) { page_out[i] = vec4(0.0); }
            for (var j = 0u; j < PAGE; j += 1u) {
                // An unseen value may be NaN: it is skipped, not multiplied by 0.
                let seen = start + j <= position;
                let p = select(0.0, exp(scores[j] - page_top), seen);
                page_sum += p;
                for (var i = 0u; i < D4; i += 1u) {
                    let v = kv_unpack(v_pages[base + j * D4 + i]);
                    page_out[i] = select(page_out[i], fma(vec4(p), v, page_out[i]), seen);
                }
            }
            let new_top = max(top, page_top);
            let old_scale = exp(top - new_top);
            let page_scale = exp(page_top - new_top);
            top = new_top;
            sum = fma(sum, old_scale, page_sum * page_scale);
            for (var i = 0u; i < D4; i += 1u) {
                out[i] = fma(out[i], vec4(old_scale), page_out[i] * page_scale);
            }
        }
        let at = ((b * SPLITS + split) * H + g * R + r) * (D4 + 1u);
        for (var i = 0u; i < D4; i += 1u) { parts[at + i] = out[i]; }
        parts[at + D4] = vec4(top, sum, 0.0, 0.0);
    }
}
