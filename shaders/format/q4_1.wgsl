// Q4_1: 32 weights q * d + m, q of 4 bits. [N, GROUPS * 5] words: d and m as f16, then 4 words of q, low nibbles first.
fn decode_group(row: u32, g: u32) -> array<vec4<f32>, 8> {
    let at = (row * GROUPS + g) * 5u;
    let dm = unpack2x16float(w[at]);
    let q = vec4(w[at + 1u], w[at + 2u], w[at + 3u], w[at + 4u]);
    return array(
        q4x4(q.x, dm), q4x4(q.y, dm), q4x4(q.z, dm), q4x4(q.w, dm),
        q4x4(q.x >> 4u, dm), q4x4(q.y >> 4u, dm), q4x4(q.z >> 4u, dm), q4x4(q.w >> 4u, dm),
    );
}

fn q4x4(word: u32, dm: vec2<f32>) -> vec4<f32> {
    return fma(vec4<f32>(unpack4xU8(word & 0x0f0f0f0fu)), vec4(dm.x), vec4(dm.y));
}
