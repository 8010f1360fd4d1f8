// MXFP4: w = d * q, d = 2^(e - 128), q twice an E2M1 number. A unit of q for each group, low nibbles first; then e, a byte, of
// all groups.
const MINIMUM = false;

alias Group = vec4<u32>;

fn group(base: u32, g: u32) -> Group {
    return unit_at(base, g);
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    let e = (word_at(base, GROUPS, g / 4u) >> (8u * (g % 4u))) & 255u;
    let subnormal = 0x00200000u << (e & 1u);
    return vec2(bitcast<f32>(select((e - 1u) << 23u, subnormal, e < 2u)), 0.0);
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    return array(values(unpack4xU8(q[j] & 0x0f0f0f0fu)), values(unpack4xU8((q[j] >> 4u) & 0x0f0f0f0fu)));
}

// Magnitudes 0, 1, 2, 3, 4, 6, 8, 12, a nibble each; bit 3 is the sign.
fn values(q: vec4<u32>) -> vec4<f32> {
    let magnitude = bitcast<vec4<i32>>((vec4(0xc8643210u) >> (4u * (q & vec4(7u)))) & vec4(15u));
    return vec4<f32>(select(magnitude, -magnitude, (q & vec4(8u)) != vec4(0u)));
}
