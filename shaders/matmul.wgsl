// y[t, ROW0 + n] = ADD * y[t, ROW0 + n] + sum_k w[n, k] * x[t, k]
// One invocation for each (n, 8 t): each group of weights is decoded once for the 8, loads of x are uniform.
override N: u32;        // rows of w
override K: u32;
override GROUPS: u32;   // K / 32, rounded up; weights beyond K are 0
override ROW0: u32;
override STRIDE: u32;   // f32 from one row of y to the next
override ADD: u32;      // 1 adds to y (residual), 0 overwrites it
override OUTPUTS: u32;  // 1: rows are outputs, 0: tokens

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;   // [T, K]
@group(0) @binding(2) var<storage, read> w: array<u32>;         // [N, K], the format's layout
@group(0) @binding(3) var<storage, read_write> y: array<f32>;   // [T, STRIDE]

const K4 = (K + 3u) / 4u;
const TILE = 8u;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let n = id.x;
    let rows = select(step.n_tokens, step.n_outputs, OUTPUTS == 1u);
    let first = id.y * TILE;
    if n >= N || first >= rows { return; }
    let last = rows - 1u;
    var sums: array<f32, TILE>;
    for (var j = 0u; j < TILE; j += 1u) { sums[j] = 0.0; }
    for (var g = 0u; g < GROUPS; g += 1u) {
        let weights = decode_group(n, g);
        for (var j = 0u; j < TILE; j += 1u) {
            let t = min(first + j, last);
            for (var i = 0u; i < 8u; i += 1u) {
                sums[j] = add_products(sums[j], weights[i], x_at(t, g * 8u + i));
            }
        }
    }
    for (var j = 0u; j < TILE; j += 1u) {
        if first + j < rows {
            let at = (first + j) * STRIDE + ROW0 + n;
            y[at] = select(sums[j], y[at] + sums[j], ADD == 1u);
        }
    }
}
