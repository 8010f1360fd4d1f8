// The (o, m, l) parts of attention of one token of each sequence, not normalised: o = sum_s exp(score_s - m) v[s],
// m = the largest score, l = sum_s exp(score_s - m), over the keys of one page of the sequence's list.
// One invocation for each (page of the list, HEADS query heads, b), which share its loads of keys and values.
override D4: u32;  // D / 4
override H: u32;
override G: u32;
override HEADS: u32;  // query heads of one invocation, a divisor of H / G
override PAGE: u32;
override PAGES: u32;  // entries of a list, at most
override SCALE: f32;
override CAP: f32;  // scores become CAP * tanh(score / CAP); 0: they stay
override WINDOW: u32;  // positions that a query sees, its own the last; 0: all before

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;       // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> sequences: array<vec4<u32>>;    // [B]: first list entry, entries, first token, tokens
@group(0) @binding(3) var<storage, read> pages: array<vec2<u32>>;        // page, its first position
@group(0) @binding(4) var<storage, read> q: array<vec4<f32>>;            // [T, H, D4]
@group(0) @binding(5) var<storage, read> k_pages: array<Kv4>;            // [pages, G, PAGE, D4]
@group(0) @binding(6) var<storage, read> v_pages: array<Kv4>;            // [pages, G, PAGE, D4]
@group(0) @binding(7) var<storage, read_write> parts: array<vec4<f32>>;  // [B, PAGES, H, D4 + 1]: o, then (m, l, 0, 0)

@compute @workgroup_size(32)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let b = id.z;
    let head = id.y * HEADS;
    if b >= step.n_sequences { return; }
    let sequence = sequences[b];
    let position = tokens[sequence.z].y;
    // A loop of one round or none: a CPU driver leaves it when no lane has a page.
    for (var e = id.x; e < sequence.y; e += PAGES) {
        let page = pages[sequence.x + e];
        let seen = seen_keys(page.y, position);
        let base = (page.x * G + head / R) * PAGE * D4;
        var weights = weigh((sequence.z * H + head) * D4, base, seen);
        let part = ((b * PAGES + e) * H + head) * (D4 + 1u);
        for (var r = 0u; r < HEADS; r += 1u) {
            parts[part + r * (D4 + 1u) + D4] = vec4(weights.top[r], weights.sum[r], 0.0, 0.0);
        }
        for (var i = 0u; i < D4; i += 1u) {
            var out = answer(&weights, base + i, seen);
            for (var r = 0u; r < HEADS; r += 1u) { parts[part + r * (D4 + 1u) + i] = out[r]; }
        }
    }
}
