// BF16: w = q. [N, GROUPS * 16] words, two weights in each.
const MINIMUM = false;

fn scale(row: u32, g: u32) -> vec2<f32> {
    return vec2(1.0, 0.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let at = (row * GROUPS + g) * 16u + 2u * j;
    return array(four(w[at], w[at + 1u]), four(w[at + 8u], w[at + 9u]));
}

fn four(a: u32, b: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u));
}
