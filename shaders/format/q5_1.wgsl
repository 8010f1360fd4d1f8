// Q5_1: w = d * q + m, q of 5 bits. A unit of bits 0 to 3 for each group, low nibbles first; then two words for each group: d
// and m as f16; bit 4, weight 4j + i at bit 8i + j and 16 + 4j + i at 8i + 4 + j.
const MINIMUM = true;

struct Group {
    low: vec4<u32>,
    high: u32,
}

fn group(base: u32, g: u32) -> Group {
    return Group(unit_at(base, g), word_at(base, GROUPS, 2u * g + 1u));
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    return unpack2x16float(word_at(base, GROUPS, 2u * g));
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    let both = packed(q, j);
    return array(vec4<f32>(unpack4xU8(both.x)), vec4<f32>(unpack4xU8(both.y)));
}

// Of 5 bits: int8 as they are.
fn packed(q: Group, j: u32) -> vec2<u32> {
    let low = q.low[j];
    let high = q.high >> j;
    return vec2(
        (low & 0x0f0f0f0fu) | ((high & 0x01010101u) << 4u),
        ((low >> 4u) & 0x0f0f0f0fu) | (high & 0x10101010u),
    );
}

// As int8.
fn halves(_q: Group) -> vec2<f32> {
    return vec2(1.0);
}
