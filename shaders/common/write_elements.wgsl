// Writes rows of keys and values that are stored one by one: dims 64 piece .. of a row.
const PIECES = (D4 + 15u) / 16u;

fn put(is_value: bool, row: u32, piece: u32, x: ptr<function, array<vec4<f32>, 16>>) {
    for (var d = 0u; d < 16u; d += 1u) {
        let dims = 16u * piece + d;
        if dims >= D4 { break; }
        let packed = kv_pack((*x)[d]);
        if is_value { v_pages[row * D4 + dims] = packed; } else { k_pages[row * D4 + dims] = packed; }
    }
}
