// y[t, f] = gelu(gate[t, f]) * up[t, f], gelu(x) = x / (1 + exp(-2 z)), z = sqrt(2 / pi) (x + 0.044715 x^3)
// One invocation for each (4 f, t).
override F4: u32;  // F / 4, rounded up

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> gate: array<vec4<f32>>;     // [T, F4]
@group(0) @binding(2) var<storage, read> up: array<vec4<f32>>;       // [T, F4]
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;  // [T, F4]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= F4 || id.y >= step.n_tokens { return; }
    let i = id.y * F4 + id.x;
    let x = gate[i];
    // Beyond ±10 gelu is x or 0 to f32 accuracy; the bounds keep x^3 and exp in range.
    let near = clamp(x, vec4(-10.0), vec4(10.0));
    let z = 0.7978845608 * (near + 0.044715 * near * near * near);
    y[i] = x / (1.0 + exp(min(-2.0 * z, vec4(80.0)))) * up[i];
}
