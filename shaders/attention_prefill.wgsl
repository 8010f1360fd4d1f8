// o[t, h] = sum_s p_s v[s, g], p = softmax_s(q[t, h] . k[s, g] * SCALE), over positions s of the sequence's listed pages
// with s <= position of t; g = h / (H / G). Online softmax (Milakov and Gimelshein 2018), one page at a time.
// One workgroup for each (tile of tokens of one sequence, HEADS query heads, TOKENS tokens of the tile).

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;     // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> tiles: array<vec4<u32>>;      // [tiles]: first list entry, entries, first token, tokens
@group(0) @binding(3) var<storage, read> pages: array<vec2<u32>>;      // page, its first position
@group(0) @binding(4) var<storage, read> queries: array<vec4<f32>>;    // [T, H, D4]
@group(0) @binding(5) var<storage, read> k_pages: array<Kv>;           // [pages, G, PAGE, D4]
@group(0) @binding(6) var<storage, read> v_pages: array<Kv>;           // [pages, G, PAGE, D4]
@group(0) @binding(7) var<storage, read_write> o: array<vec4<f32>>;    // [T, H, D4]
@group(0) @binding(8) var<storage, read_write> near: array<vec4<f32>>; // [T, H]: m, l

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let tile = tiles[group.x];
    if group.x >= step.n_tiles || group.z * TOKENS >= tile.w { return; }
    let t = tile.z + group.z * TOKENS;
    let last = min(t + TOKENS, tile.z + tile.w) - 1u;
    let head = group.y * HEADS;
    let end = tile.x + tile.y;

    var top: array<f32, OWN>;
    var sum: array<f32, OWN>;
    for (var i = 0u; i < OWN; i += 1u) {
        top[i] = LOWEST;
        sum[i] = 0.0;
    }
    // o holds the sum of the parts so far, which are merged as attention_merge does.
    for (var first = tile.x; first < end; first += RUN) {
        var part = run_part(t, last, head, first, min(first + RUN, end), lane);
        for (var i = 0u; i < OWN; i += 1u) {
            let is_first = sum[i] == 0.0;
            let is_empty = part.sum[i] == 0.0;
            let new_top = max(top[i], part.top[i]);
            let old_scale = exp(top[i] - new_top);
            let part_scale = exp(part.top[i] - new_top);
            top[i] = select(new_top, top[i], is_empty);
            sum[i] = select(fma(sum[i], old_scale, part.sum[i] * part_scale), sum[i], is_empty);
            let token = t + query_of(lane, i) / HEADS;
            let row = (token * H + head + query_of(lane, i) % HEADS) * D4;
            for (var c = 0u; c < CHUNKS; c += 1u) {
                let dims = dims_of(lane, c);
                if token <= last && dims < D4 && !is_empty {
                    let old = select(o[row + dims], vec4(0.0), is_first);
                    o[row + dims] = fma(old, vec4(old_scale), part.o[i][c] * part_scale);
                }
            }
        }
    }
    for (var i = 0u; i < OWN; i += 1u) {
        let token = t + query_of(lane, i) / HEADS;
        let row = (token * H + head + query_of(lane, i) % HEADS) * D4;
        for (var c = 0u; c < CHUNKS; c += 1u) {
            let dims = dims_of(lane, c);
            // A query that sees nothing answers 0.
            if token <= last && dims < D4 { o[row + dims] = select(vec4(0.0), o[row + dims] / sum[i], sum[i] != 0.0); }
            if token <= last && dims == 0u { near[row / D4] = vec4(top[i], sum[i], 0.0, 0.0); }
        }
    }
}
