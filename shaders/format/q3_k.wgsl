// Q3_K: w = d * q, q = (s - 32) * (v - 4), v of 3 bits, s of 6 bits of 16 weights. Bits 0 and 1 of v, two words for each
// group, weight 4j + i at bit 8i + 4 (j % 2) of word j / 2 and 16 + 4j + i above it; then bit 2, a word for each group,
// weight 4j + i at bit 8i + j and 16 + 4j + i at 8i + 4 + j; then a unit for each 8 groups: bits 0 to 3 of 16 times s, two
// words, their bits 4 and 5, d as f16.
const MINIMUM = false;

struct Group {
    low: vec2<u32>,
    high: u32,
    s: vec2<f32>,
}

fn group(base: u32, g: u32) -> Group {
    let unit = unit_at(base, g / 2u);
    return Group(select(unit.xy, unit.zw, g % 2u == 1u), word_at(base, GROUPS / 2u, g), scales(base, g) - 32.0);
}

fn scales(base: u32, g: u32) -> vec2<f32> {
    let unit = unit_at(base, GROUPS / 4u * 3u + g / 8u);
    let low = select(unit.x, unit.y, (g & 4u) != 0u) >> (8u * (g % 4u));
    let high = unit.z >> (4u * (g % 8u));
    return vec2<f32>(vec2((low & 15u) | ((high & 3u) << 4u), ((low >> 4u) & 15u) | ((high & 12u) << 2u)));
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    return vec2(unpack2x16float(unit_at(base, GROUPS / 4u * 3u + g / 8u).w).x, 0.0);
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    let low = q.low[j / 2u] >> (4u * (j % 2u));
    let high = q.high >> j;
    return array(
        q.s.x * (vec4<f32>(unpack4xU8((low & 0x03030303u) | ((high & 0x01010101u) << 2u))) - 4.0),
        q.s.y * (vec4<f32>(unpack4xU8(((low >> 2u) & 0x03030303u) | ((high >> 2u) & 0x04040404u))) - 4.0),
    );
}
