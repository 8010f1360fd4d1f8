// Reads keys and values that are stored in blocks: dims 4i .. of slot j of a head of a page, `head` counted through all pages.
fn key4(head: u32, j: u32, i: u32, scale: f32) -> vec4<f32> {
    return scale * quants(k_pages[quants_at(head, j, i)], i);
}

fn value4(head: u32, j: u32, i: u32, scale: f32) -> vec4<f32> {
    return scale * quants(v_pages[quants_at(head, j, i)], i);
}

// Of a block of 32 dims.
fn key_scale(head: u32, j: u32, block: u32) -> f32 {
    return unpack2x16float(k_pages[scales_at(head, j, block)] >> (16u * (block % 2u))).x;
}

fn value_scale(head: u32, j: u32, block: u32) -> f32 {
    return unpack2x16float(v_pages[scales_at(head, j, block)] >> (16u * (block % 2u))).x;
}
