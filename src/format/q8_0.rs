use half::f16;

use super::Format;

const LEN: usize = 32;
const BYTES: usize = 34;

/// Blocks of 32 signed bytes q and an f16 scale d: weight = d q.
///
/// In the checkpoint a block is d, then q. On the GPU all q come first, `[rows][groups][32]` bytes, then all d,
/// `[rows][groups]` halves, two in a word, with a zero half behind an odd number of them.
pub static Q8_0: Format = Format {
    name: "Q8_0",
    ggml: 8,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    gpu_bytes: |rows, cols| {
        let groups = rows * cols.div_ceil(LEN);
        groups * LEN + (groups * 2).next_multiple_of(4)
    },
    repack,
    wgsl: include_str!("../../shaders/format/q8_0.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let d = f16::from_le_bytes([block[0], block[1]]).to_f32();
        for (q, to) in block[2..].iter().zip(to) {
            *to = d * f32::from(*q as i8);
        }
    }
}

fn repack(bytes: &[u8], rows: usize, cols: usize, gpu: &mut [u8]) {
    let groups = rows * (cols / LEN);
    assert_eq!(bytes.len(), groups * BYTES, "bytes of {rows} × {cols} Q8_0 weights");
    let (quants, scales) = gpu.split_at_mut(groups * LEN);
    let (scales, rest) = scales.split_at_mut(groups * 2);
    rest.fill(0);
    for ((block, q), d) in bytes.chunks_exact(BYTES).zip(quants.chunks_exact_mut(LEN)).zip(scales.chunks_exact_mut(2)) {
        d.copy_from_slice(&block[..2]);
        q.copy_from_slice(&block[2..]);
    }
}
