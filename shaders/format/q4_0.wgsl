// Q4_0: w = d * q, q of 4 bits less 8. A unit of q for each group, low nibbles first; then d, f16, of all groups.
const MINIMUM = false;

alias Group = vec4<u32>;

fn group(base: u32, g: u32) -> Group {
    return unit_at(base, g);
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    return vec2(half_at(base, GROUPS, g), 0.0);
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    let both = bytes(q, j);
    return array(vec4<f32>(unpack4xU8(both.x)) - 8.0, vec4<f32>(unpack4xU8(both.y)) - 8.0);
}

// Of 4 bits.
fn bytes(q: Group, j: u32) -> vec2<u32> {
    return vec2(q[j], q[j] >> 4u) & vec2(0x0f0f0f0fu);
}

// As int8.
fn packed(q: Group, j: u32) -> vec2<u32> {
    let both = bytes(q, j);
    return vec2(less(both.x, 8u), less(both.y, 8u));
}

fn halves(_q: Group) -> vec2<f32> {
    return vec2(1.0);
}
