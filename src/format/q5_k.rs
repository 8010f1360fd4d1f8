use super::Format;
use super::group::{LEN as GROUP, bits, half_at, nibbles, scales};
use super::q4_k::scale;

const LEN: usize = 256;
const BYTES: usize = 176;

/// Blocks of 8 groups of 32 weights: weight = d s q - dmin m, with f16 d and dmin of the block, s and m of 6 bits of
/// the group and q of 5 bits.
///
/// In the checkpoint a block is d, dmin, s and m as in Q4_K, 32 bytes of bit 4 of q (byte i has weights i, 32 + i, …,
/// low bits first), then nibbles as in Q4_K. On the GPU: `d | dmin << 16`, 3 words of s and m in the order of
/// `group::scales`, then q of the 8 groups, five words each in the order of `group::bits` and `group::nibbles`.
///
/// d s q (11 + 6 + 5 bits) and dmin m are exact in f32, so that only the subtraction rounds, fused or not.
pub static Q5_K: Format = Format {
    name: "Q5_K",
    ggml: 13,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    head_bytes: 0,
    gpu_bytes: |rows, cols| rows * cols.div_ceil(LEN) * BYTES,
    repack,
    wgsl: include_str!("../../shaders/format/q5_k.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let (d, dmin) = (half_at(block, 0), half_at(block, 2));
        for (g, to) in to.chunks_exact_mut(GROUP).enumerate() {
            let (s, m) = scale(&block[4..], g);
            let (d, m) = (d * f32::from(s), dmin * f32::from(m));
            for (q, to) in quants(block, g).iter().zip(to) {
                *to = d * f32::from(*q) - m;
            }
        }
    }
}

fn quants(block: &[u8; BYTES], g: usize) -> [u8; GROUP] {
    let nibble = |i: usize| block[48 + g / 2 * 32 + i] >> (g % 2 * 4) & 15;
    std::array::from_fn(|i| nibble(i) | (block[16 + i] >> g & 1) << 4)
}

fn repack(bytes: &[u8], _rows: usize, _cols: usize, gpu: &mut [u8]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(gpu.chunks_exact_mut(BYTES)) {
        to[..4].copy_from_slice(&block[..4]);
        scales(|g| scale(&block[4..], g), &mut to[4..]);
        for (g, to) in to[16..].chunks_exact_mut(20).enumerate() {
            let q = quants(block, g);
            bits(&q, 4, to);
            nibbles(&q, &mut to[4..]);
        }
    }
}
