// KV elements stored f16, two in a word. Values beyond ±65504 are clamped: packing them is undefined.
alias Kv4 = vec2<u32>;
alias Kv = Kv4;  // what pages are arrays of

fn kv_unpack(x: Kv4) -> vec4<f32> {
    return vec4(unpack2x16float(x.x), unpack2x16float(x.y));
}

fn kv_pack(x: vec4<f32>) -> Kv4 {
    let y = clamp(x, vec4(-65504.0), vec4(65504.0));
    return vec2(pack2x16float(y.xy), pack2x16float(y.zw));
}

// A pair of neighbours, as it is written.
alias Kv2 = u32;

fn kv_pack2(x: vec2<f32>) -> Kv2 {
    return pack2x16float(clamp(x, vec2(-65504.0), vec2(65504.0)));
}
