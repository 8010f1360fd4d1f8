use super::Format;

/// 32-bit floats.
///
/// On the GPU: `[rows][groups * 32]` floats, a word each.
pub static F32: Format = Format {
    name: "F32",
    ggml: 0,
    block_len: 1,
    block_bytes: 4,
    decode,
    encode: None,
    head_bytes: 0,
    gpu_bytes: |rows, cols| rows * cols.next_multiple_of(32) * 4,
    repack: |bytes, _rows, cols, gpu| pad_rows(bytes, cols * 4, gpu, cols.next_multiple_of(32) * 4),
    wgsl: include_str!("../../shaders/format/f32.wgsl"),
};

/// Copies rows of `row` bytes to rows of `padded` bytes, zeros behind each.
pub(super) fn pad_rows(bytes: &[u8], row: usize, gpu: &mut [u8], padded: usize) {
    assert_eq!(bytes.len() / row, gpu.len() / padded, "rows of the checkpoint and of the GPU buffer");
    for (from, to) in bytes.chunks_exact(row).zip(gpu.chunks_exact_mut(padded)) {
        to[..row].copy_from_slice(from);
        to[row..].fill(0);
    }
}

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (from, to) in bytes.as_chunks().0.iter().zip(weights) {
        *to = f32::from_le_bytes(*from);
    }
}
