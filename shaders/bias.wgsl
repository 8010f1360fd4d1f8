// y[t, c] += b[c]. One invocation for each (4 c, t).
override C4: u32;  // C / 4, rounded up

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;        // [C4]
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f32>>;  // [T, C4]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= C4 || id.y >= step.n_tokens { return; }
    y[id.y * C4 + id.x] += b[id.x];
}
