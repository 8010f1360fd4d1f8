// y[t, F0 + f] = act(sum_k gate[f, k] x[t, k]) * sum_k up[f, k] x[t, k], of x or of x normalised.
// Of each 16 rows of w the first 8 are rows of gate, the others the same of up.
// One workgroup for each (LANES * ROWS / 2 f, TOKENS t).
override F: u32;        // rows of gate that are bound
override F0: u32;
override STRIDE: u32;   // f32 from one row of y to the next

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;        // [T, K]
@group(0) @binding(2) var<storage, read> vectors: array<vec4<f32>>;  // [K]: gains of the norm
@group(0) @binding(3) var<storage, read> w: array<vec4<u32>>;        // [N, K], the format's layout
@group(0) @binding(4) var<storage, read_write> y: array<f32>;        // [T, STRIDE]

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let t = group.y * TOKENS;
    if t >= step.n_tokens { return; }
    prepare(t, lane);
    var sums = products(group.x, t, step.n_tokens - 1u, lane);
    for (var r = 0u; r < ROWS; r += 2u) {
        let f = row_of(group.x, lane, r) / 16u * 8u + lane.index % 8u;
        for (var i = turn(lane); i < TOKENS; i += TURNS) {
            let value = act(of_token(sums[r], i)) * of_token(sums[r + 1u], i);
            if f < F && t + i < step.n_tokens { y[(t + i) * STRIDE + F0 + f] = value; }
        }
    }
}
