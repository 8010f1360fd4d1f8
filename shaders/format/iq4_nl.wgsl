// IQ4_NL: w = d * q, q the value of a nibble. First all nibbles, [N, GROUPS * 4] words, low ones first, then all d,
// f16, [N * GROUPS], two in a word.
const MINIMUM = false;

fn scale(row: u32, g: u32) -> vec2<f32> {
    let block = row * GROUPS + g;
    let pair = unpack2x16float(w[N * GROUPS * 4u + block / 2u]);
    return vec2(select(pair.x, pair.y, (block & 1u) == 1u), 0.0);
}

fn quants(row: u32, g: u32, j: u32) -> array<vec4<f32>, 2> {
    let word = w[(row * GROUPS + g) * 4u + j];
    return array(values(unpack4xU8(word & 0x0f0f0f0fu)), values(unpack4xU8((word >> 4u) & 0x0f0f0f0fu)));
}

// The table of 16 int8, 4 in a word.
fn values(q: vec4<u32>) -> vec4<f32> {
    let low = select(vec4(0xbfad9881u), vec4(0xf6eaddcfu), (q & vec4(4u)) != vec4(0u));
    let high = select(vec4(0x26190d01u), vec4(0x71594535u), (q & vec4(4u)) != vec4(0u));
    let word = select(low, high, q >= vec4(8u));
    return vec4<f32>(bitcast<vec4<i32>>(word << (vec4(24u) - 8u * (q & vec4(3u)))) >> vec4(24u));
}
