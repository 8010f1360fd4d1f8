use super::{Format, f32::pad_rows};

/// The upper halves of 32-bit floats.
///
/// On the GPU: `[rows][groups * 32]` halves, two in a word, the even one low.
pub static BF16: Format = Format {
    name: "BF16",
    ggml: 30,
    block_len: 1,
    block_bytes: 2,
    decode,
    encode: None,
    head_bytes: 0,
    gpu_bytes: |rows, cols| rows * cols.next_multiple_of(32) * 2,
    repack: |bytes, _rows, cols, gpu| pad_rows(bytes, cols * 2, gpu, cols.next_multiple_of(32) * 2),
    wgsl: include_str!("../../shaders/format/bf16.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (from, to) in bytes.as_chunks().0.iter().zip(weights) {
        *to = f32::from_bits(u32::from(u16::from_le_bytes(*from)) << 16);
    }
}
