// F32: w = q. 8 units for each group, 4 weights in each.
const MINIMUM = false;

// Where the group begins: `quants` loads two units of it.
alias Group = u32;

fn group(base: u32, g: u32) -> Group {
    return base + 8u * (8u * g);
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    return vec2(1.0, 0.0);
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    return array(bitcast<vec4<f32>>(unit_at(q, j)), bitcast<vec4<f32>>(unit_at(q, 4u + j)));
}
