// y[i] = a + b + c, each after 8 * ROUNDS times v = v * x[0] + x[1], from v = i mod 64 / 64 + j / 4 in component j on, for b 1 and for c
// 2 more.
// One invocation for each i: 12 chains hide the latency of a multiply-add, and fit 16 registers.
override ROUNDS: u32;

@group(0) @binding(0) var<storage, read> x: array<f32>;              // [2]
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let m = vec4(x[0]);
    let n = vec4(x[1]);
    var a = vec4(f32(id.x % 64u) / 64.0) + vec4(0.0, 0.25, 0.5, 0.75);
    var b = a + 1.0;
    var c = a + 2.0;
    for (var round = 0u; round < ROUNDS; round += 1u) {
        a = fma(a, m, n); b = fma(b, m, n); c = fma(c, m, n);
        a = fma(a, m, n); b = fma(b, m, n); c = fma(c, m, n);
        a = fma(a, m, n); b = fma(b, m, n); c = fma(c, m, n);
        a = fma(a, m, n); b = fma(b, m, n); c = fma(c, m, n);
        a = fma(a, m, n); b = fma(b, m, n); c = fma(c, m, n);
        a = fma(a, m, n); b = fma(b, m, n); c = fma(c, m, n);
        a = fma(a, m, n); b = fma(b, m, n); c = fma(c, m, n);
        a = fma(a, m, n); b = fma(b, m, n); c = fma(c, m, n);
    }
    y[id.x] = a + b + c;
}
