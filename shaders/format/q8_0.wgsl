// Q8_0: w = d * q, q int8. First all q, [N, GROUPS * 8] words, then all d, f16, [N * GROUPS], two in a word.
const MINIMUM = false;

fn scale(row: u32, g: u32) -> vec2<f32> {
    let block = row * GROUPS + g;
    let pair = unpack2x16float(w[N * GROUPS * 8u + block / 2u]);
    return vec2(select(pair.x, pair.y, (block & 1u) == 1u), 0.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let at = (row * GROUPS + g) * 8u + j;
    return array(vec4<f32>(unpack4xI8(w[at])), vec4<f32>(unpack4xI8(w[at + 4u])));
}
