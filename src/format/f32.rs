use super::Format;
use super::group::LEN;

/// 32-bit floats.
///
/// On the GPU a group is 8 units, in order.
pub static F32: Format = Format {
    name: "F32",
    ggml: 0,
    block_len: 1,
    block_bytes: 4,
    decode,
    encode: None,
    units: |cols| cols.div_ceil(LEN) * 8,
    pack_row: |row, units| units[..row.len()].copy_from_slice(row),
    packed: false,
    wgsl: include_str!("../../shaders/format/f32.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (from, to) in bytes.as_chunks().0.iter().zip(weights) {
        *to = f32::from_le_bytes(*from);
    }
}
