// Q8_0: 32 weights q * d, q int8. First all q, [N, GROUPS * 8] words, then all d, f16, [N * GROUPS], two in a word.
fn decode_group(row: u32, g: u32) -> array<vec4<f32>, 8> {
    let block = row * GROUPS + g;
    let pair = unpack2x16float(w[N * GROUPS * 8u + block / 2u]);
    let d = select(pair.x, pair.y, (block & 1u) == 1u);
    let at = block * 8u;
    return array(
        q8x4(w[at], d), q8x4(w[at + 1u], d), q8x4(w[at + 2u], d), q8x4(w[at + 3u], d),
        q8x4(w[at + 4u], d), q8x4(w[at + 5u], d), q8x4(w[at + 6u], d), q8x4(w[at + 7u], d),
    );
}

fn q8x4(word: u32, d: f32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(word)) * d;
}
