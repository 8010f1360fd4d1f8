// KV elements stored f32.
alias Kv4 = vec4<f32>;
alias Kv = Kv4;  // what pages are arrays of

fn kv_unpack(x: Kv4) -> vec4<f32> {
    return x;
}

fn kv_pack(x: vec4<f32>) -> Kv4 {
    return x;
}

// A pair of neighbours, as it is written.
alias Kv2 = vec2<f32>;

fn kv_pack2(x: vec2<f32>) -> Kv2 {
    return x;
}
