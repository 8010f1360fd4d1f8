// Q5_K: w = d * q + m, q of 5 bits; d = D * s and m = -M * r, s and r of 6 bits. A unit of bits 0 to 3 of q for each group,
// low nibbles first; then bit 4, a word for each group, weight 4j + i at bit 8i + j and 16 + 4j + i at 8i + 4 + j; then a
// unit for each 8 groups: D and M as f16; bits 0 to 3 of 8 times s and r, two words, and their bits 4 and 5.
const MINIMUM = true;

struct Group {
    low: vec4<u32>,
    high: u32,
}

fn group(base: u32, g: u32) -> Group {
    return Group(unit_at(base, g), word_at(base, GROUPS, g));
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    let unit = unit_at(base, GROUPS / 4u * 5u + g / 8u);
    let low = select(unit.y, unit.z, (g & 4u) != 0u) >> (8u * (g % 4u));
    let high = unit.w >> (4u * (g % 8u));
    let sm = vec2<f32>(vec2((low & 15u) | ((high & 3u) << 4u), ((low >> 4u) & 15u) | ((high & 12u) << 2u)));
    // Both products are exact, and so is d * q: one rounding in d * q + m, whether fused or not.
    return unpack2x16float(unit.x) * sm * vec2(1.0, -1.0);
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
