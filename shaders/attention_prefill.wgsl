// o[t, h] = sum_s p_s v[s, g], p = softmax_s(q[t, h] . k[s, g] * SCALE), over positions s of the sequence's listed pages
// with s <= position of t; g = h / (H / G). Online softmax (Milakov and Gimelshein 2018), one page at a time.
// One workgroup for each (tile of 32 tokens of one sequence, HEADS query heads), one invocation for each token of it.
override D4: u32;  // D / 4
override H: u32;
override G: u32;
override HEADS: u32;  // query heads of one invocation, a divisor of H / G
override PAGE: u32;
override SCALE: f32;
override CAP: f32;  // scores become CAP * tanh(score / CAP); 0: they stay
override WINDOW: u32;  // positions that a query sees, its own the last; 0: all before

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;     // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> sequences: array<vec4<u32>>;  // [B]: first list entry, entries, first token, tokens
@group(0) @binding(3) var<storage, read> tiles: array<vec4<u32>>;      // [tiles]: sequence, first token, tokens
@group(0) @binding(4) var<storage, read> pages: array<vec2<u32>>;      // page, its first position
@group(0) @binding(5) var<storage, read> q: array<vec4<f32>>;          // [T, H, D4]
@group(0) @binding(6) var<storage, read> k_pages: array<Kv4>;          // [pages, G, PAGE, D4]
@group(0) @binding(7) var<storage, read> v_pages: array<Kv4>;          // [pages, G, PAGE, D4]
@group(0) @binding(8) var<storage, read_write> o: array<vec4<f32>>;    // [T, H, D4]

@compute @workgroup_size(32)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let tile = tiles[group.x];
    if group.x >= step.n_tiles || lane >= tile.z { return; }
    let sequence = sequences[tile.x];
    let t = tile.y + lane;
    let head = group.y * HEADS;
    let position = tokens[t].y;

    var top: array<f32, HEADS>;
    var sum: array<f32, HEADS>;
    for (var r = 0u; r < HEADS; r += 1u) {
        top[r] = LOWEST;
        sum[r] = 0.0;
    }
    for (var e = sequence.x; e < sequence.x + sequence.y; e += 1u) {
        let page = pages[e];
        let seen = seen_keys(page.y, position);
        if seen.x >= seen.y { continue; }
        let base = (page.x * G + head / R) * PAGE * D4;
        var weights = weigh((t * H + head) * D4, base, seen);
        var started: array<bool, HEADS>;
        var old_scale: array<f32, HEADS>;
        var page_scale: array<f32, HEADS>;
        for (var r = 0u; r < HEADS; r += 1u) {
            started[r] = sum[r] != 0.0;
            let new_top = max(top[r], weights.top[r]);
            old_scale[r] = exp(top[r] - new_top);
            page_scale[r] = exp(weights.top[r] - new_top);
            top[r] = new_top;
            sum[r] = fma(sum[r], old_scale[r], weights.sum[r] * page_scale[r]);
        }
        // o holds the sum so far: in registers it would make drivers compile for half a minute.
        for (var i = 0u; i < D4; i += 1u) {
            var out = answer(&weights, base + i, seen);
            for (var r = 0u; r < HEADS; r += 1u) {
                let at = (t * H + head + r) * D4 + i;
                let old = select(vec4(0.0), o[at], started[r]);
                o[at] = fma(old, vec4(old_scale[r]), out[r] * page_scale[r]);
            }
        }
    }
    for (var r = 0u; r < HEADS; r += 1u) {
        // A query that sees nothing answers 0. (From a start that is no constant: drivers would unroll the loop.)
        let start = (t * H + head + r) * D4;
        for (var at = start; at < start + D4; at += 1u) { o[at] = select(vec4(0.0), o[at] / sum[r], sum[r] != 0.0); }
    }
}
