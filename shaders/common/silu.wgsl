// x / (1 + exp(-x)); exp of more than 80 would overflow, and silu there is 0 to f32 accuracy.
fn act(x: f32) -> f32 {
    return x / (1.0 + exp(min(-x, 80.0)));
}
