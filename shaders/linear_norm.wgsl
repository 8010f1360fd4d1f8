// y[t, ROW0 + n] = sum_k w[n, k] * x[t, k] of x normalised, or of x that was normalised before.
// One workgroup for each (LANES * ROWS n, TOKENS t).
override ROW0: u32;
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
    for (var r = 0u; r < ROWS; r += 1u) {
        let n = row_of(group.x, lane, r);
        for (var i = turn(lane); i < TOKENS; i += TURNS) {
            if n < N && t + i < step.n_tokens { y[(t + i) * STRIDE + ROW0 + n] = of_token(sums[r], i); }
        }
    }
}
