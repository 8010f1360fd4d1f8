// Rotary pairs are (p, p + R / 2): GPT-NeoX, Qwen. Piece i of a head is 8 dims with the pairs 4i .. 4i + 4.
fn piece(i: u32) -> vec2<u32> {
    return vec2(i, i + R4 / 2u);
}

// The two vec4 of a piece, turned by (cos, sin) of its pairs.
fn rotate(x: array<vec4<f32>, 2>, turn: array<vec4<f32>, 2>) -> array<vec4<f32>, 2> {
    let cosines = vec4(turn[0].xz, turn[1].xz);
    let sines = vec4(turn[0].yw, turn[1].yw);
    return array(x[0] * cosines - x[1] * sines, x[0] * sines + x[1] * cosines);
}
