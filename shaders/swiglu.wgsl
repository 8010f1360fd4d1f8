// y[t, f] = silu(gate[t, f]) * up[t, f], silu(x) = x / (1 + exp(-x)). One invocation for each (4 f, t).
override F4: u32;  // F / 4, rounded up

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> gate: array<vec4<f32>>;     // [T, F4]
@group(0) @binding(2) var<storage, read> up: array<vec4<f32>>;       // [T, F4]
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;  // [T, F4]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= F4 || id.y >= step.n_tokens { return; }
    let i = id.y * F4 + id.x;
    // exp of more than 80 would overflow; silu there is 0 to f32 accuracy.
    y[i] = gate[i] / (1.0 + exp(min(-gate[i], vec4(80.0)))) * up[i];
}
