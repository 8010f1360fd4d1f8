// F32: [N, GROUPS * 32] words.
fn decode_group(row: u32, g: u32) -> array<vec4<f32>, 8> {
    let at = (row * GROUPS + g) * 32u;
    return array(f32x4(at), f32x4(at + 4u), f32x4(at + 8u), f32x4(at + 12u), f32x4(at + 16u), f32x4(at + 20u), f32x4(at + 24u), f32x4(at + 28u));
}

fn f32x4(at: u32) -> vec4<f32> {
    return bitcast<vec4<f32>>(vec4(w[at], w[at + 1u], w[at + 2u], w[at + 3u]));
}
