// Q4_1: w = d * q + m, q of 4 bits. [N, GROUPS * 5] words: d and m as f16, then 4 words of q, low nibbles first.
const MINIMUM = true;

fn scale(row: u32, g: u32) -> vec2<f32> {
    return unpack2x16float(w[(row * GROUPS + g) * 5u]);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let word = w[(row * GROUPS + g) * 5u + 1u + j];
    return array(vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu)), vec4<f32>(unpack4xU8((word >> 4u) & 0x0f0f0f0fu)));
}
