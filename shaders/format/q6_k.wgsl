// Q6_K: w = d * q, q = s * (v - 32), v of 6 bits, s int8 of 16 weights. A unit of bits 0 to 3 of v for each group, low
// nibbles first; then bits 4 and 5, two words for each group, weight 4j + i at bit 8i + 4 (j % 2) of word j / 2 and 16 + 4j
// + i above it; then s, two bytes for each group; then d, f16, for each 8 groups.
const MINIMUM = false;

struct Group {
    low: vec4<u32>,
    high: vec2<u32>,
    s: vec2<f32>,
}

fn group(base: u32, g: u32) -> Group {
    let high = unit_at(base, GROUPS + g / 2u);
    let s = word_at(base, GROUPS / 2u * 3u, g / 2u) >> (16u * (g % 2u));
    return Group(unit_at(base, g), select(high.xy, high.zw, g % 2u == 1u), vec4<f32>(unpack4xI8(s)).xy);
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    return vec2(half_at(base, GROUPS / 8u * 13u, g / 8u), 0.0);
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    let both = bytes(q, j);
    return array(
        q.s.x * (vec4<f32>(unpack4xU8(both.x)) - 32.0),
        q.s.y * (vec4<f32>(unpack4xU8(both.y)) - 32.0),
    );
}

// Of 6 bits.
fn bytes(q: Group, j: u32) -> vec2<u32> {
    let low = q.low[j];
    let high = q.high[j / 2u] >> (4u * (j % 2u));
    return vec2(
        (low & 0x0f0f0f0fu) | ((high & 0x03030303u) << 4u),
        ((low >> 4u) & 0x0f0f0f0fu) | ((high & 0x0c0c0c0cu) << 2u),
    );
}

// As int8.
fn packed(q: Group, j: u32) -> vec2<u32> {
    let both = bytes(q, j);
    return vec2(less(both.x, 32u), less(both.y, 32u));
}

fn halves(q: Group) -> vec2<f32> {
    return q.s;
}
