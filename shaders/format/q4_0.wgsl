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
    return array(
        vec4<f32>(unpack4xU8(q[j] & 0x0f0f0f0fu)) - 8.0,
        vec4<f32>(unpack4xU8((q[j] >> 4u) & 0x0f0f0f0fu)) - 8.0,
    );
}
