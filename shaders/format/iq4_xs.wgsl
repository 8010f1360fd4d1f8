// IQ4_XS: w = d * q, q the value of a nibble, d = D * (s - 32), s of 6 bits. A unit of nibbles for each group, low ones
// first; then two words for each 8 groups: D as f16 and above it bits 4 and 5 of 8 times s; their bits 0 to 3.
const MINIMUM = false;

alias Group = vec4<u32>;

fn group(base: u32, g: u32) -> Group {
    return unit_at(base, g);
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    let i = g % 8u;
    let first = word_at(base, GROUPS, g / 8u * 2u);
    let low = word_at(base, GROUPS, g / 8u * 2u + 1u) >> (4u * i);
    let s = (low & 15u) | (((first >> (16u + 2u * i)) & 3u) << 4u);
    return vec2(unpack2x16float(first).x * (f32(s) - 32.0), 0.0);
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    return array(values(unpack4xU8(q[j] & 0x0f0f0f0fu)), values(unpack4xU8((q[j] >> 4u) & 0x0f0f0f0fu)));
}

// The table of 16 int8, 4 in a word.
fn values(q: vec4<u32>) -> vec4<f32> {
    let low = select(vec4(0xbfad9881u), vec4(0xf6eaddcfu), (q & vec4(4u)) != vec4(0u));
    let high = select(vec4(0x26190d01u), vec4(0x71594535u), (q & vec4(4u)) != vec4(0u));
    let word = select(low, high, q >= vec4(8u));
    return vec4<f32>(bitcast<vec4<i32>>(word << (vec4(24u) - 8u * (q & vec4(3u)))) >> vec4(24u));
}
