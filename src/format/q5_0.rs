use super::Format;
use super::group::{LEN, bits, half_at, planes, planes_bytes};

const BYTES: usize = 22;
const BODY: usize = 20;

/// Blocks of 32 quants q of 5 bits and an f16 scale d: weight = d (q - 16).
///
/// In the checkpoint a block is d, 4 bytes of high bits, then nibbles as in Q4_0. On the GPU all q come first,
/// `[rows][groups]` of 5 words, high bits in the order of `group::bits` and nibbles, then all d, `[rows][groups]`
/// halves, padded to a word.
///
/// d q is exact in f32 (11 + 5 bits).
pub static Q5_0: Format = Format {
    name: "Q5_0",
    ggml: 6,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    head_bytes: BYTES - BODY,
    gpu_bytes: |rows, cols| planes_bytes(rows * cols.div_ceil(LEN), BYTES, BODY),
    repack: |bytes, _rows, _cols, gpu| {
        planes(bytes, BYTES, BODY, gpu, |block, q, d| {
            d.copy_from_slice(&block[..2]);
            bits(&quants(&block[2..]), 4, q);
            q[4..].copy_from_slice(&block[6..]);
        });
    },
    wgsl: include_str!("../../shaders/format/q5_0.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let d = half_at(block, 0);
        for (q, to) in quants(&block[2..]).iter().zip(to) {
            *to = d * (f32::from(*q) - 16.0);
        }
    }
}

/// From 4 bytes of high bits and 16 of nibbles.
pub(super) fn quants(bytes: &[u8]) -> [u8; LEN] {
    let high = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let nibble = |i: usize| bytes[4 + i % 16] >> (i / 16 * 4) & 15;
    std::array::from_fn(|i| nibble(i) | ((high >> i & 1) as u8) << 4)
}
