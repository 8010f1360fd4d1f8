// Q4_1: w = d * q + m, q of 4 bits. A unit of q for each group, low nibbles first; then d and m, f16, a word for each group.
const MINIMUM = true;

alias Group = vec4<u32>;

fn group(base: u32, g: u32) -> Group {
    return unit_at(base, g);
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    return unpack2x16float(word_at(base, GROUPS, g));
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    let both = packed(q, j);
    return array(vec4<f32>(unpack4xU8(both.x)), vec4<f32>(unpack4xU8(both.y)));
}

// Of 4 bits: int8 as they are.
fn packed(q: Group, j: u32) -> vec2<u32> {
    return vec2(q[j], q[j] >> 4u) & vec2(0x0f0f0f0fu);
}

// As int8.
fn halves(_q: Group) -> vec2<f32> {
    return vec2(1.0);
}
