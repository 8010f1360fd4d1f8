// Q5_0: w = d * q, q of 5 bits less 16. First all q, [N, GROUPS * 5] words: bit 4, weight 4j + i at bit 8i + j and 16 +
// 4j + i at 8i + 4 + j; then 4 words of nibbles, low ones first. Then all d, f16, [N * GROUPS], two in a word.
const MINIMUM = false;

fn scale(row: u32, g: u32) -> vec2<f32> {
    let block = row * GROUPS + g;
    let pair = unpack2x16float(w[N * GROUPS * 5u + block / 2u]);
    return vec2(select(pair.x, pair.y, (block & 1u) == 1u), 0.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let at = (row * GROUPS + g) * 5u;
    let high = w[at] >> j;
    let word = w[at + 1u + j];
    return array(
        vec4<f32>(unpack4xU8((word & 0x0f0f0f0fu) | ((high & 0x01010101u) << 4u))) - 16.0,
        vec4<f32>(unpack4xU8(((word >> 4u) & 0x0f0f0f0fu) | (high & 0x10101010u))) - 16.0,
    );
}
