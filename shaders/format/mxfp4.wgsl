// MXFP4: w = d * q, d = 2^(e - 128), q twice an E2M1 number. First all nibbles, [N, GROUPS * 4] words, low ones first,
// then all e, [N * GROUPS] bytes, four in a word.
const MINIMUM = false;

fn scale(row: u32, g: u32) -> vec2<f32> {
    let block = row * GROUPS + g;
    let e = (w[N * GROUPS * 4u + block / 4u] >> (8u * (block & 3u))) & 255u;
    let subnormal = 0x00200000u << (e & 1u);
    return vec2(bitcast<f32>(select((e - 1u) << 23u, subnormal, e < 2u)), 0.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let word = w[(row * GROUPS + g) * 4u + j];
    return array(values(unpack4xU8(word & 0x0f0f0f0fu)), values(unpack4xU8((word >> 4u) & 0x0f0f0f0fu)));
}

// Magnitudes 0, 1, 2, 3, 4, 6, 8, 12, a nibble each; bit 3 is the sign.
fn values(q: vec4<u32>) -> vec4<f32> {
    let magnitude = bitcast<vec4<i32>>((vec4(0xc8643210u) >> (4u * (q & vec4(7u)))) & vec4(15u));
    return vec4<f32>(select(magnitude, -magnitude, (q & vec4(8u)) != vec4(0u)));
}
