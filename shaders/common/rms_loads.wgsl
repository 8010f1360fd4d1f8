// 1 / sqrt(mean of the squares of the n elements from x[start] on + eps): every invocation sums all of them.
fn rms_scale(start: u32, n: u32, eps: f32, _lane: Lane) -> f32 {
    var squares = vec4(0.0);
    for (var i = 0u; i < n / 4u; i += 1u) {
        let v = x[start + i];
        squares = fma(v, v, squares);
    }
    var sum = (squares.x + squares.y) + (squares.z + squares.w);
    for (var i = 0u; i < n % 4u; i += 1u) {
        let v = x[start + n / 4u][i];
        sum += v * v;
    }
    return 1.0 / sqrt(sum / f32(n) + eps);
}
