// y[t, h, c] = ADD * y[t, h, c] + w[c] * x[t, h, c] / sqrt(mean_c(x[t, h, c]^2) + EPS)
// One workgroup for each (t, h). Every invocation sums the whole row: its loads are uniform, and no barrier is needed.
override C: u32;
override H: u32;
override EPS: f32;
override ADD: u32;      // 1 adds to y (residual), 0 overwrites it
override OUTPUTS: u32;  // 1: rows are outputs, 0: tokens

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;        // [T, H, C]
@group(0) @binding(2) var<storage, read> w: array<vec4<f32>>;        // [C]
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;  // [T, H, C]

const C4 = (C + 3u) / 4u;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    if group.x >= select(step.n_tokens, step.n_outputs, OUTPUTS == 1u) { return; }
    let row = (group.x * H + group.y) * C4;
    var squares = vec4(0.0);
    for (var i = 0u; i < C / 4u; i += 1u) {
        let v = x[row + i];
        squares = fma(v, v, squares);
    }
    var sum = squares.x + squares.y + squares.z + squares.w;
    for (var i = 0u; i < C % 4u; i += 1u) {
        let v = x[row + C4 - 1u][i];
        sum += v * v;
    }
    let scale = 1.0 / sqrt(sum / f32(C) + EPS);
    for (var i = lane; i < C4; i += 64u) {
        let value = w[i] * x[row + i] * scale;
        y[row + i] = select(value, y[row + i] + value, ADD == 1u);
    }
}
