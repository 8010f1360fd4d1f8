// BF16: w = q. 4 units for each group: unit j has weights 4j .. and 16 + 4j .., two in a word.
const MINIMUM = false;

// Where the group begins: `quants` loads a unit of it.
alias Group = u32;

fn group(base: u32, g: u32) -> Group {
    return base + 8u * (4u * g);
}

fn scale(base: u32, g: u32) -> vec2<f32> {
    return vec2(1.0, 0.0);
}

fn quants(q: Group, j: u32) -> array<vec4<f32>, 2> {
    let unit = unit_at(q, j);
    return array(four(unit.xy), four(unit.zw));
}

fn four(words: vec2<u32>) -> vec4<f32> {
    let low = words << vec2(16u);
    let high = words & vec2(0xffff0000u);
    return bitcast<vec4<f32>>(vec4(low.x, high.x, low.y, high.y));
}
