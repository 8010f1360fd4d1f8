// Q2_K: w = q = d * s * v - dmin * m, v of 2 bits, s and m of 4 bits of 16 weights: the minimum changes within a group,
// so `quants` applies it. Two words of v for each group, weight 4j + i at bit 8i + 4 (j % 2) of word j / 2, 16 + 4j + i
// above it; then a half of a word for each group, s and m of each 16 weights, s low; then d and dmin, f16, for each 8 groups.
const MINIMUM = false;

struct Group {
    v: vec2<u32>,
    s: vec2<f32>,
    m: vec2<f32>,
}

fn group(base: u32, g: u32) -> Group {
    let unit = unit_at(base, g / 2u);
    let sm = word_at(base, GROUPS / 2u, g / 2u) >> (16u * (g % 2u));
    // Products of d and of dmin are exact: one rounding, whether fused or not.
    let d = unpack2x16float(word_at(base, GROUPS / 2u + GROUPS / 8u, g / 8u));
    return Group(
        select(unit.xy, unit.zw, g % 2u == 1u),
        d.x * vec2<f32>(vec2(sm & 15u, (sm >> 8u) & 15u)),
        d.y * vec2<f32>(vec2((sm >> 4u) & 15u, (sm >> 12u) & 15u)),
    );
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    return vec2(1.0, 0.0);
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    let v = q.v[j / 2u] >> (4u * (j % 2u));
    return array(
        q.s.x * vec4<f32>(unpack4xU8(v & 0x03030303u)) - q.m.x,
        q.s.y * vec4<f32>(unpack4xU8((v >> 2u) & 0x03030303u)) - q.m.y,
    );
}
