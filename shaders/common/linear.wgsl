// What matvec and matmul share, so that both give the same bits: the order of one output's sum, and x beyond K as 0.
fn add_products(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// x[t, 4i .. 4i + 4]
fn x_at(t: u32, i: u32) -> vec4<f32> {
    if K % 32u == 0u || i < K / 4u { return x[t * K4 + i]; }
    let left = vec4(K) > 4u * i + vec4(0u, 1u, 2u, 3u);
    return select(vec4(0.0), x[t * K4 + min(i, K4 - 1u)], left);
}
