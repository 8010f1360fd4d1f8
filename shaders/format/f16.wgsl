// F16: w = q. [N, GROUPS * 16] words, two weights in each.
const MINIMUM = false;

fn scale(row: u32, g: u32) -> vec2<f32> {
    return vec2(1.0, 0.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let at = (row * GROUPS + g) * 16u + 2u * j;
    return array(
        vec4(unpack2x16float(w[at]), unpack2x16float(w[at + 1u])),
        vec4(unpack2x16float(w[at + 8u]), unpack2x16float(w[at + 9u])),
    );
}
