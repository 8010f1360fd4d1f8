use half::f16;

use super::{Format, f32::pad_rows};

/// 16-bit IEEE floats.
///
/// On the GPU: `[rows][groups * 32]` halves, two in a word, the even one low.
pub static F16: Format = Format {
    name: "F16",
    ggml: 1,
    block_len: 1,
    block_bytes: 2,
    decode,
    encode: Some(encode),
    head_bytes: 0,
    gpu_bytes: |rows, cols| rows * cols.next_multiple_of(32) * 2,
    repack: |bytes, _rows, cols, gpu| pad_rows(bytes, cols * 2, gpu, cols.next_multiple_of(32) * 2),
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
