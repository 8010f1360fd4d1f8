// Q5_0: w = d * q, q of 5 bits less 16. A unit of bits 0 to 3 for each group, low nibbles first; then bit 4, a word for each
// group, weight 4j + i at bit 8i + j and 16 + 4j + i at 8i + 4 + j; then d, f16, of all groups.
const MINIMUM = false;

struct Group {
    low: vec4<u32>,
    high: u32,
}

fn group(base: u32, g: u32) -> Group {
    return Group(unit_at(base, g), word_at(base, GROUPS, g));
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    return vec2(half_at(base, GROUPS, 2u * GROUPS + g), 0.0);
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    let both = bytes(q, j);
    return array(vec4<f32>(unpack4xU8(both.x)) - 16.0, vec4<f32>(unpack4xU8(both.y)) - 16.0);
}

// Of 5 bits.
fn bytes(q: Group, j: u32) -> vec2<u32> {
    let low = q.low[j];
    let high = q.high >> j;
    return vec2(
        (low & 0x0f0f0f0fu) | ((high & 0x01010101u) << 4u),
        ((low >> 4u) & 0x0f0f0f0fu) | (high & 0x10101010u),
    );
}

// As int8.
fn packed(q: Group, j: u32) -> vec2<u32> {
    let both = bytes(q, j);
    return vec2(less(both.x, 16u), less(both.y, 16u));
}

fn halves(_q: Group) -> vec2<f32> {
    return vec2(1.0);
}
