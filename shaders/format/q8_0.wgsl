// Q8_0: w = d * q, q int8. Two units of q for each group; then d, f16, of all groups.
const MINIMUM = false;

alias Group = array<vec4<u32>, 2>;

fn group(base: u32, g: u32) -> Group {
    return Group(unit_at(base, 2u * g), unit_at(base, 2u * g + 1u));
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    return vec2(half_at(base, 2u * GROUPS, g), 0.0);
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    return array(vec4<f32>(unpack4xI8(q[0][j])), vec4<f32>(unpack4xI8(q[1][j])));
}

// As int8.
fn packed(q: Group, j: u32) -> vec2<u32> {
    return vec2(q[0][j], q[1][j]);
}

fn halves(_q: Group) -> vec2<f32> {
    return vec2(1.0);
}
