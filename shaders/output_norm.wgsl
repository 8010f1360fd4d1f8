// y[r, c] = w[c] * x[t, c] / sqrt(mean_c(x[t, c]^2) + EPS), t = outputs[r]. One workgroup for each r.
override C: u32;
override EPS: f32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> outputs: array<u32>;        // [R]
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;        // [T, C]
@group(0) @binding(3) var<storage, read> w: array<vec4<f32>>;        // [C]
@group(0) @binding(4) var<storage, read_write> y: array<vec4<f32>>;  // [R, C]

const C4 = (C + 3u) / 4u;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    if group.x >= step.n_outputs { return; }
    let row = outputs[group.x] * C4;
    let scale = rms_scale(row, C, EPS, lane);
    for (var i = lane.index; i < C4; i += 64u) { y[group.x * C4 + i] = w[i] * x[row + i] * scale; }
}
