// Q5_K: w = d * q + m, q of 5 bits; d = D * s and m = -M * r, s and r of 6 bits. [N, GROUPS / 8] blocks of 44 words: D
// and M as f16; bits 0 to 3 of 8 times s and r, 2 words, and their bits 4 and 5; then 8 times 5 words of q: bit 4,
// weight 4j + i at bit 8i + j and 16 + 4j + i at 8i + 4 + j; 4 words of nibbles, low ones first.
const MINIMUM = true;

fn scale(row: u32, g: u32) -> vec2<f32> {
    let at = (row * GROUPS + g) / 8u * 44u;
    let i = g % 8u;
    let low = w[at + 1u + i / 4u] >> (8u * (i & 3u));
    let high = w[at + 3u] >> (4u * i);
    let sm = vec2<f32>(vec2((low & 15u) | ((high & 3u) << 4u), ((low >> 4u) & 15u) | ((high & 12u) << 2u)));
    // Both products are exact, and so is d * q: one rounding in d * q + m, whether fused or not.
    return unpack2x16float(w[at]) * sm * vec2(1.0, -1.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let at = (row * GROUPS + g) / 8u * 44u + 4u + 5u * (g % 8u);
    let high = w[at] >> j;
    let word = w[at + 1u + j];
    return array(
        vec4<f32>(unpack4xU8((word & 0x0f0f0f0fu) | ((high & 0x01010101u) << 4u))),
        vec4<f32>(unpack4xU8(((word >> 4u) & 0x0f0f0f0fu) | (high & 0x10101010u))),
    );
}
