use half::f16;

use super::Format;
use super::group::{LEN, halves};

/// 16-bit IEEE floats.
///
/// On the GPU a group is 4 units in the order of `group::halves`: one load for each call of `quants`.
pub static F16: Format = Format {
    name: "F16",
    ggml: 1,
    block_len: 1,
    block_bytes: 2,
    decode,
    encode: Some(encode),
    units: |cols| cols.div_ceil(LEN) * 4,
    pack_row: halves,
    packed: false,
    wgsl: include_str!("../../shaders/format/f16.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (from, to) in bytes.as_chunks().0.iter().zip(weights) {
        *to = f16::from_le_bytes(*from).to_f32();
    }
}

fn encode(weights: &[f32], bytes: &mut [u8]) {
    for (from, to) in weights.iter().zip(bytes.as_chunks_mut().0) {
        *to = f16::from_f32(*from).to_le_bytes();
    }
}
