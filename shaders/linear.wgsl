// y[t, ROW0 + n] = ADD * y[t, ROW0 + n] + sum_k w[n, k] * x[t, k]
// One workgroup for each (LANES * ROWS n, TOKENS t).
override ROW0: u32;
override STRIDE: u32;   // f32 from one row of y to the next
override ADD: u32;      // 1 adds to y (residual), 0 overwrites it
override OUTPUTS: u32;  // 1: rows are outputs, 0: tokens

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;   // [T, K]
@group(0) @binding(2) var<storage, read> w: array<vec4<u32>>;   // [N, K], the format's layout
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, STRIDE]

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let tokens = select(step.n_tokens, step.n_outputs, OUTPUTS == 1u);
    let t = group.y * TOKENS;
    if t >= tokens { return; }
    var sums = products(group.x, t, tokens - 1u, lane);
    for (var r = 0u; r < ROWS; r += 1u) {
        let n = row_of(group.x, lane, r);
        let at = t * STRIDE + ROW0 + n;
        for (var i = turn(lane); i < TOKENS; i += TURNS) {
            let sum = of_token(sums[r], i);
            if n < N && t + i < tokens { y[at + i * STRIDE] = select(sum, y[at + i * STRIDE] + sum, ADD == 1u); }
        }
    }
}
