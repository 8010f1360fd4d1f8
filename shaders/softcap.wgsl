// x[r, v] = CAP * tanh(x[r, v] / CAP), in place. One invocation for each (4 v, r).
override V4: u32;  // V / 4, rounded up
override CAP: f32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read_write> x: array<vec4<f32>>;  // [R, V4]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= V4 || id.y >= step.n_outputs { return; }
    let i = id.y * V4 + id.x;
    let y = x[i];
    x[i] = vec4(softcap(y.x, CAP), softcap(y.y, CAP), softcap(y.z, CAP), softcap(y.w, CAP));
}
