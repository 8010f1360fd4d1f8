// What attention_prefill and attention_decode share, so that both give the same bits.
// A score below every real one: keys that a query does not see.
const LOWEST = -3.4028234e38;

fn add_dot(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}
