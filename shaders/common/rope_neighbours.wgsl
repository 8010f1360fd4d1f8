// Rotary pairs are neighbours, (2p, 2p + 1): Llama as GGUF has it. Piece i of a head is 8 dims with the pairs 4i .. 4i + 4.
fn piece(i: u32) -> vec2<u32> {
    return vec2(2u * i, 2u * i + 1u);
}

// The two vec4 of a piece, turned by (cos, sin) of its pairs.
fn rotate(x: array<vec4<f32>, 2>, turn: array<vec4<f32>, 2>) -> array<vec4<f32>, 2> {
    return array(rotate_neighbours(x[0], turn[0]), rotate_neighbours(x[1], turn[1]));
}

fn rotate_neighbours(x: vec4<f32>, turn: vec4<f32>) -> vec4<f32> {
    return vec4(
        x.x * turn.x - x.y * turn.y, x.x * turn.y + x.y * turn.x,
        x.z * turn.z - x.w * turn.w, x.z * turn.w + x.w * turn.z,
    );
}
