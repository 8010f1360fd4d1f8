// y[t, c] = SCALE * table[token, c], token = tokens[t] or, where that is SAMPLED + i, ids[i], for the rows ROW0 .. ROW0 + N of the table that are bound.
// One invocation for each (group of 32 c, t).
override C4: u32;      // C / 4, rounded up
override GROUPS: u32;  // C / 32, rounded up
override N: u32;
override ROW0: u32;
override SCALE: f32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;   // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> ids: array<u32>;            // [R]: what the step before has drawn
@group(0) @binding(3) var<storage, read> w: array<vec4<u32>>;        // [N, C], the format's layout
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;  // [T, C4]

const SAMPLED = 0x80000000u;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let g = id.x;
    let t = id.y;
    if g >= GROUPS || t >= step.n_tokens { return; }
    var row = tokens[t].x;
    if row >= SAMPLED { row = ids[row - SAMPLED]; }
    if row < ROW0 || row >= ROW0 + N { return; }
    let base = row_base(row - ROW0);
    let loaded = group(base, g);
    let dm = scale(base, g);
    for (var j = 0u; j < 4u; j += 1u) {
        let q = quants(loaded, j);
        let at = g * 8u + j;
        if at < C4 { y[t * C4 + at] = SCALE * weights(q[0], dm); }
        if at + 4u < C4 { y[t * C4 + at + 4u] = SCALE * weights(q[1], dm); }
    }
}

// Without a minimum nothing is added: -0 + 0 would lose its sign.
fn weights(q: vec4<f32>, dm: vec2<f32>) -> vec4<f32> {
    if MINIMUM { return fma(q, vec4(dm.x), vec4(dm.y)); }
    return q * dm.x;
}
