// Q5_1: w = d * q + m, q of 5 bits. [N, GROUPS * 6] words: d and m as f16; bit 4 of q, weight 4j + i at bit 8i + j and
// 16 + 4j + i at 8i + 4 + j; then 4 words of nibbles, low ones first.
const MINIMUM = true;

fn scale(row: u32, g: u32) -> vec2<f32> {
    return unpack2x16float(w[(row * GROUPS + g) * 6u]);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let at = (row * GROUPS + g) * 6u + 1u;
    let high = w[at] >> j;
    let word = w[at + 1u + j];
    return array(
        vec4<f32>(unpack4xU8((word & 0x0f0f0f0fu) | ((high & 0x01010101u) << 4u))),
        vec4<f32>(unpack4xU8(((word >> 4u) & 0x0f0f0f0fu) | (high & 0x10101010u))),
    );
}
