// F32: w = q. [N, GROUPS * 32] words.
const MINIMUM = false;

fn scale(row: u32, g: u32) -> vec2<f32> {
    return vec2(1.0, 0.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let at = (row * GROUPS + g) * 32u + 4u * j;
    return array(
        bitcast<vec4<f32>>(vec4(w[at], w[at + 1u], w[at + 2u], w[at + 3u])),
        bitcast<vec4<f32>>(vec4(w[at + 16u], w[at + 17u], w[at + 18u], w[at + 19u])),
    );
}
