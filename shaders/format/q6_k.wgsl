// Q6_K: w = d * q, q = s * (v - 32), v of 6 bits, s int8 of 16 weights. [N, GROUPS / 8] blocks of 53 words: 8 times 6
// words of v: 4 of nibbles, low ones first; bits 4 and 5, weight 4j + i at bit 8i + 4 (j % 2) of word 4 + j / 2 and 16
// + 4j + i above it; then 4 words of s; d as f16.
const MINIMUM = false;

fn scale(row: u32, g: u32) -> vec2<f32> {
    return vec2(unpack2x16float(w[(row * GROUPS + g) / 8u * 53u + 52u]).x, 0.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let at = (row * GROUPS + g) / 8u * 53u;
    let i = g % 8u;
    let word = w[at + 6u * i + j];
    let high = w[at + 6u * i + 4u + j / 2u] >> (4u * (j & 1u));
    let s = vec4<f32>(unpack4xI8(w[at + 48u + i / 2u] >> (16u * (i & 1u))));
    return array(
        s.x * (vec4<f32>(unpack4xU8((word & 0x0f0f0f0fu) | ((high & 0x03030303u) << 4u))) - 32.0),
        s.y * (vec4<f32>(unpack4xU8(((word >> 4u) & 0x0f0f0f0fu) | ((high & 0x0c0c0c0cu) << 2u))) - 32.0),
    );
}
