// Keys and values in blocks of 32 int8 and a scale: x = scale * q.
const BITS = 8u;  // of q, which is also words of a block

// Dims 4i .. of their word.
fn quants(word: u32, _i: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(word));
}

// The scale of a block, of its least and its most.
fn scale_of(least: f32, most: f32) -> f32 {
    return max(most, -least) / 127.0;
}

// Word i of a block of x, with 1 / scale.
fn block_word(x: ptr<function, array<vec4<f32>, 8>>, i: u32, inverse: f32) -> u32 {
    return pack4xI8(vec4<i32>(clamp(round((*x)[i] * inverse), vec4(-127.0), vec4(127.0))));
}
