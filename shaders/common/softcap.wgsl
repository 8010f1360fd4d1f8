// cap * tanh(x / cap). tanh is a polynomial near 0, where most scores are and a difference of exponentials would cancel.
fn softcap(x: f32, cap: f32) -> f32 {
    // Beyond ±10 tanh is ±1 to f32 accuracy; the bound keeps exp in range.
    let y = clamp(x / cap, -10.0, 10.0);
    let s = y * y;
    let series = fma(fma(fma(0.01799922, s, -0.05339105), s, 0.13330514), s, -0.33333312);
    let near = fma(y * s, series, y);
    let far = sign(y) * (1.0 - 2.0 / (1.0 + exp(2.0 * abs(y))));
    return cap * select(far, near, abs(y) < 0.5);
}
