// y = x. One invocation for each EACH vec4, as far apart as there are invocations.
override INVOCATIONS: u32;
override EACH: u32;

@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;        // [INVOCATIONS * EACH]
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;  // [INVOCATIONS * EACH]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    for (var i = 0u; i < EACH; i += 1u) {
        y[i * INVOCATIONS + id.x] = x[i * INVOCATIONS + id.x];
    }
}
