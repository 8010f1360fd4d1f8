// Q4_0: w = d * q, q of 4 bits less 8. First all q, [N, GROUPS * 4] words, low nibbles first, then all d, f16,
// [N * GROUPS], two in a word.
const MINIMUM = false;

fn scale(row: u32, g: u32) -> vec2<f32> {
    let block = row * GROUPS + g;
    let pair = unpack2x16float(w[N * GROUPS * 4u + block / 2u]);
    return vec2(select(pair.x, pair.y, (block & 1u) == 1u), 0.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let word = w[(row * GROUPS + g) * 4u + j];
    return array(
        vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu)) - 8.0,
        vec4<f32>(unpack4xU8((word >> 4u) & 0x0f0f0f0fu)) - 8.0,
    );
}
