// Q4_K: w = d * q + m, q of 4 bits; d = D * s and m = -M * r, s and r of 6 bits. [N, GROUPS / 8] blocks of 36 words: D
// and M as f16; bits 0 to 3 of 8 times s and r, 2 words, and their bits 4 and 5; then 8 times 4 words of q, low nibbles
// first.
const MINIMUM = true;

fn scale(row: u32, g: u32) -> vec2<f32> {
    let at = (row * GROUPS + g) / 8u * 36u;
    let i = g % 8u;
    let low = w[at + 1u + i / 4u] >> (8u * (i & 3u));
    let high = w[at + 3u] >> (4u * i);
    let sm = vec2<f32>(vec2((low & 15u) | ((high & 3u) << 4u), ((low >> 4u) & 15u) | ((high & 12u) << 2u)));
    // Both products are exact, and so is d * q: one rounding in d * q + m, whether fused or not.
    return unpack2x16float(w[at]) * sm * vec2(1.0, -1.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let word = w[(row * GROUPS + g) / 8u * 36u + 4u + 4u * (g % 8u) + j];
    return array(vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu)), vec4<f32>(unpack4xU8((word >> 4u) & 0x0f0f0f0fu)));
}
