use super::Format;
use super::group::{LEN as GROUP, half_at, nibbles, pairs};

const LEN: usize = 256;
const BYTES: usize = 210;
const GPU: usize = 212;

/// Blocks of 16 runs of 16 weights: weight = d s (q - 32), with f16 d of the block, s of 8 signed bits of the run and q
/// of 6 bits.
///
/// In the checkpoint a block is 128 bytes of nibbles (byte 64 n + i has weight 128 n + i low and 128 n + 64 + i high),
/// 64 bytes of bits 4 and 5 (byte 32 n + i has weights 128 n + i and those 32, 64 and 96 on, low bits first), 16 bytes
/// of s, d. On the GPU: q of the 8 groups, six words each in the order of `group::nibbles` and `group::pairs`, 4 words
/// of s, then d in a word of its own, which makes a block 1 % longer.
///
/// d s q is exact in f32 (11 + 7 + 5 bits; -128 and -32 are powers of two).
pub static Q6_K: Format = Format {
    name: "Q6_K",
    ggml: 14,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    head_bytes: 0,
    gpu_bytes: |rows, cols| rows * cols.div_ceil(LEN) * GPU,
    repack,
    wgsl: include_str!("../../shaders/format/q6_k.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let d = half_at(block, 208);
        for (g, to) in to.chunks_exact_mut(GROUP).enumerate() {
            let q = quants(block, g);
            for (i, (q, to)) in q.iter().zip(to).enumerate() {
                *to = d * f32::from(block[192 + 2 * g + i / 16] as i8) * (f32::from(*q) - 32.0);
            }
        }
    }
}

fn quants(block: &[u8; BYTES], g: usize) -> [u8; GROUP] {
    let (half, quarter) = (g / 4, g % 4);
    let nibble = |i: usize| block[64 * half + quarter % 2 * 32 + i] >> (quarter / 2 * 4) & 15;
    std::array::from_fn(|i| nibble(i) | (block[128 + 32 * half + i] >> (2 * quarter) & 3) << 4)
}

fn repack(bytes: &[u8], _rows: usize, _cols: usize, gpu: &mut [u8]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(gpu.chunks_exact_mut(GPU)) {
        for (g, to) in to[..192].chunks_exact_mut(24).enumerate() {
            let q = quants(block, g);
            nibbles(&q, to);
            pairs(&q, 4, &mut to[16..]);
        }
        to[192..BYTES].copy_from_slice(&block[192..]);
        to[BYTES..].fill(0);
    }
}
