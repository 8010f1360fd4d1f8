// Q2_K: w = q = d * s * v - dmin * m, v of 2 bits, s and m of 4 bits of 16 weights: the minimum changes within a group,
// so `quants` applies it. [N, GROUPS / 8] blocks of 21 words: 8 times 2 words of v, weight 4j + i at bit 8i + 4 (j % 2)
// of word j / 2, 16 + 4j + i above it; 4 words of s and m, s low; d and dmin as f16.
const MINIMUM = false;

fn scale(row: u32, g: u32) -> vec2<f32> {
    return vec2(1.0, 0.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let at = (row * GROUPS + g) / 8u * 21u;
    let i = g % 8u;
    let word = w[at + 2u * i + j / 2u] >> (4u * (j & 1u));
    let sm = w[at + 16u + i / 2u] >> (16u * (i & 1u));
    // Products of d and of dmin are exact: one rounding, whether fused or not.
    let d = unpack2x16float(w[at + 20u]);
    let s = d.x * vec2<f32>(vec2(sm & 15u, (sm >> 8u) & 15u));
    let m = d.y * vec2<f32>(vec2((sm >> 4u) & 15u, (sm >> 12u) & 15u));
    return array(
        s.x * vec4<f32>(unpack4xU8(word & 0x03030303u)) - m.x,
        s.y * vec4<f32>(unpack4xU8((word >> 2u) & 0x03030303u)) - m.y,
    );
}
