use super::Format;
use super::group::{LEN, halves};

/// The upper halves of 32-bit floats.
///
/// On the GPU a group is 4 units in the order of `group::halves`: one load for each call of `quants`.
pub static BF16: Format = Format {
    name: "BF16",
    ggml: 30,
    block_len: 1,
    block_bytes: 2,
    decode,
    encode: None,
    units: |cols| cols.div_ceil(LEN) * 4,
    pack_row: halves,
    packed: false,
    wgsl: include_str!("../../shaders/format/bf16.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (from, to) in bytes.as_chunks().0.iter().zip(weights) {
        *to = f32::from_bits(u32::from(u16::from_le_bytes(*from)) << 16);
    }
}
