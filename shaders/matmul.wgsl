// y[t, ROW0 + n] = ADD * y[t, ROW0 + n] + sum_k w[n, k] * x[t, k]
// One workgroup for each (LANES * ROWS n, TOKENS t).
override N: u32;        // rows of w
override K: u32;
override GROUPS: u32;   // K / 32, rounded up; weights beyond K are 0
override ROW0: u32;
override STRIDE: u32;   // f32 from one row of y to the next
override ADD: u32;      // 1 adds to y (residual), 0 overwrites it
override OUTPUTS: u32;  // 1: rows are outputs, 0: tokens
override LANES: u32;    // invocations of a workgroup
override ROWS: u32;     // rows of w of one invocation
override TOKENS: u32;   // tokens of one invocation

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;   // [T, K]
@group(0) @binding(2) var<storage, read> w: array<u32>;         // [N, K], the format's layout
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, STRIDE]

const K4 = (K + 3u) / 4u;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let n = group.x * LANES * ROWS + lane;
    let tokens = select(step.n_tokens, step.n_outputs, OUTPUTS == 1u);
    let t = group.y * TOKENS;
    if n >= N || t >= tokens { return; }
    let sums = products(n, t, tokens - 1u);
    for (var r = 0u; r < ROWS; r += 1u) {
        for (var i = 0u; i < TOKENS; i += 1u) {
            let at = (t + i) * STRIDE + ROW0 + n + LANES * r;
            if n + LANES * r < N && t + i < tokens { y[at] = select(sums[r][i], y[at] + sums[r][i], ADD == 1u); }
        }
    }
}
