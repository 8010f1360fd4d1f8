// y[t, h, c] = ADD * y[t, h, c] + w[c] * x[t, h, c] / sqrt(mean_c(x[t, h, c]^2) + EPS)
// One workgroup for each (t, h). No barrier is needed.
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
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    if group.x >= select(step.n_tokens, step.n_outputs, OUTPUTS == 1u) { return; }
    let row = (group.x * H + group.y) * C4;
    let scale = rms_scale(row, C, EPS, lane);
    for (var i = lane.index; i < C4; i += 64u) {
        let value = w[i] * x[row + i] * scale;
        y[row + i] = select(value, y[row + i] + value, ADD == 1u);
    }
}
