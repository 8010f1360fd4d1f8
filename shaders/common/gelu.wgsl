// x / (1 + exp(-2 z)), z = sqrt(2 / pi) (x + 0.044715 x^3). Beyond ±10 gelu is x or 0 to f32 accuracy; the bounds keep x^3 and
// exp in range.
fn act(x: f32) -> f32 {
    let near = clamp(x, -10.0, 10.0);
    let z = 0.7978845608 * (near + 0.044715 * near * near * near);
    return x / (1.0 + exp(min(-2.0 * z, 80.0)));
}
