// Reads keys and values that are stored one by one: dims 4i .. of slot j of a head of a page, `head` counted through all pages.
fn key4(head: u32, j: u32, i: u32, _scale: f32) -> vec4<f32> {
    return kv_unpack(k_pages[(head * PAGE + j) * D4 + i]);
}

fn value4(head: u32, j: u32, i: u32, _scale: f32) -> vec4<f32> {
    return kv_unpack(v_pages[(head * PAGE + j) * D4 + i]);
}

// Of a block of 32 dims: none.
fn key_scale(_head: u32, _j: u32, _block: u32) -> f32 {
    return 1.0;
}

fn value_scale(_head: u32, _j: u32, _block: u32) -> f32 {
    return 1.0;
}
