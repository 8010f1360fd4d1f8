// Keys and values in blocks of 32 numbers of 4 bits and a scale: x = scale * (q - 8). Of 8 dims in a word the first four are in the low
// bits of its bytes.
const BITS = 4u;  // of q, which is also words of a block

// Dims 4i .. of their word.
fn quants(word: u32, i: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8((word >> (4u * (i % 2u))) & 0x0f0f0f0fu)) - 8.0;
}

// The scale of a block, of its least and its most: the one of larger magnitude becomes 0, so that its sign has all 16 steps.
fn scale_of(least: f32, most: f32) -> f32 {
    return select(least, most, most > -least) / -8.0;
}

// Word i of a block of x, with 1 / scale.
fn block_word(x: ptr<function, array<vec4<f32>, 8>>, i: u32, inverse: f32) -> u32 {
    return rounded((*x)[2u * i] * inverse) | (rounded((*x)[2u * i + 1u] * inverse) << 4u);
}

fn rounded(x: vec4<f32>) -> u32 {
    return pack4xU8(vec4<u32>(clamp(round(x) + 8.0, vec4(0.0), vec4(15.0))));
}
