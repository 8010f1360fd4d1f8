// Q3_K: w = d * q, q = (s - 32) * (v - 4), v of 3 bits, s of 6 bits of 16 weights. First [N, GROUPS / 8] blocks of 27
// words: 8 times 3 words of v: bits 0 and 1, weight 4j + i at bit 8i + 4 (j % 2) of word j / 2 and 16 + 4j + i above
// it; bit 2, weight 4j + i at bit 8i + j and 16 + 4j + i at 8i + 4 + j; then bits 0 to 3 of all s, 2 words, and bits 4
// and 5. Then all d, f16, two in a word.
const MINIMUM = false;

fn scale(row: u32, g: u32) -> vec2<f32> {
    let block = (row * GROUPS + g) / 8u;
    let pair = unpack2x16float(w[N * (GROUPS / 8u) * 27u + block / 2u]);
    return vec2(select(pair.x, pair.y, (block & 1u) == 1u), 0.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let at = (row * GROUPS + g) / 8u * 27u;
    let i = g % 8u;
    let word = w[at + 3u * i + j / 2u] >> (4u * (j & 1u));
    let bit = w[at + 3u * i + 2u] >> j;
    let low = w[at + 24u + i / 4u] >> (8u * (i & 3u));
    let high = w[at + 26u] >> (4u * i);
    let s = vec2<f32>(vec2((low & 15u) | ((high & 3u) << 4u), ((low >> 4u) & 15u) | ((high & 12u) << 2u))) - 32.0;
    return array(
        s.x * (vec4<f32>(unpack4xU8((word & 0x03030303u) | ((bit & 0x01010101u) << 2u))) - 4.0),
        s.y * (vec4<f32>(unpack4xU8(((word >> 2u) & 0x03030303u) | ((bit >> 2u) & 0x04040404u))) - 4.0),
    );
}
