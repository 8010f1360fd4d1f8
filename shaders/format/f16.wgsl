// F16: [N, GROUPS * 16] words, two weights in each.
fn decode_group(row: u32, g: u32) -> array<vec4<f32>, 8> {
    let at = (row * GROUPS + g) * 16u;
    return array(f16x4(at), f16x4(at + 2u), f16x4(at + 4u), f16x4(at + 6u), f16x4(at + 8u), f16x4(at + 10u), f16x4(at + 12u), f16x4(at + 14u));
}

fn f16x4(at: u32) -> vec4<f32> {
    return vec4(unpack2x16float(w[at]), unpack2x16float(w[at + 1u]));
}
