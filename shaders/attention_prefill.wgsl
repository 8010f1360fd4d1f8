// o[t, h] = sum_s p_s v[s, g], p = softmax_s(q[t, h] . k[s, g] / sqrt(D)), over positions s of the sequence's listed pages
// with s <= position of t; g = h / (H / G). Online softmax (Milakov and Gimelshein 2018), one page at a time.
// One workgroup for each (tile of tokens of one sequence, g); one invocation for each (t, h) of it: keys and values are the
// same for all, so their loads are uniform.
override D4: u32;  // D / 4
override H: u32;
override G: u32;
override PAGE: u32;
override SCALE: f32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;     // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> sequences: array<vec4<u32>>;  // [B]: first list entry, entries, first token, tokens
@group(0) @binding(3) var<storage, read> tiles: array<vec4<u32>>;      // [tiles]: sequence, first token, tokens
@group(0) @binding(4) var<storage, read> pages: array<vec2<u32>>;      // page, its first position
@group(0) @binding(5) var<storage, read> q: array<vec4<f32>>;          // [T, H, D4]
@group(0) @binding(6) var<storage, read> k_pages: array<Kv4>;          // [pages, G, PAGE, D4]
@group(0) @binding(7) var<storage, read> v_pages: array<Kv4>;          // [pages, G, PAGE, D4]
@group(0) @binding(8) var<storage, read_write> o: array<vec4<f32>>;    // [T, H, D4]

const R = H / G;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let tile = tiles[group.x];
    if lane >= tile.z * R { return; }
    let sequence = sequences[tile.x];
    let t = tile.y + lane / R;
    let g = group.y;
    let head = t * H + g * R + lane % R;
    let position = tokens[t].y;
    let last_position = tokens[tile.y + tile.z - 1u].y;

    var query: array<vec4<f32>, D4>;
    var out: array<vec4<f32>, D4>;
    for (var i = 0u; i < D4; i += 1u) {
        query[i] = q[head * D4 + i] * SCALE;
        out[i] = vec4(0.0);
    }
    var top = LOWEST;
    var sum = 0.0;
    for (var e = sequence.x; e < sequence.x + sequence.y; e += 1u) {
        let start = pages[e].y;
        if start > last_position { continue; }
        let base = (pages[e].x * G + g) * PAGE * D4;
        var scores: array<f32, PAGE>;
        var page_top = LOWEST;
        for (var j = 0u; j < PAGE; j += 1u) {
            var score = 0.0;
            for (var i = 0u; i < D4; i += 1u) {
                score = add_dot(score, query[i], kv_unpack(k_pages[base + j * D4 + i]));
            }
            scores[j] = select(LOWEST, score, start + j <= position);
            page_top = max(page_top, scores[j]);
        }
        if start > position { continue; }
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
    // A query that sees nothing answers 0.
    let norm = select(0.0, 1.0 / sum, sum > 0.0);
    for (var i = 0u; i < D4; i += 1u) {
        o[head * D4 + i] = out[i] * norm;
    }
}
