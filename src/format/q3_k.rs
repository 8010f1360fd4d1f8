use super::Format;
use super::group::{LEN as GROUP, bits, half_at, pairs, planes, planes_bytes, scales};

const LEN: usize = 256;
const BYTES: usize = 110;
const BODY: usize = 108;

/// Blocks of 16 runs of 16 weights: weight = d (s - 32) (q - 4), with f16 d of the block, s of 6 bits of the run and q
/// of 3 bits.
///
/// In the checkpoint a block is 32 bytes of bit 2 of q (byte i has weights i, 32 + i, …, low bits first), 64 bytes of
/// bits 0 and 1 as in Q2_K, 12 bytes of s (low nibbles of runs 0 to 7 and above them 8 to 15; then bits 4 and 5 of runs
/// 0 to 3 and above them 4 to 7, …), d. On the GPU: q of the 8 groups, three words each in the order of `group::pairs`
/// and `group::bits`, 3 words of s in the order of `group::scales`; then all d, halves, padded to a word.
///
/// d s q is exact in f32 (11 + 5 + 2 bits).
pub static Q3_K: Format = Format {
    name: "Q3_K",
    ggml: 11,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    head_bytes: BYTES - BODY,
    gpu_bytes: |rows, cols| planes_bytes(rows * cols.div_ceil(LEN), BYTES, BODY),
    repack: |bytes, _rows, _cols, gpu| {
        planes(bytes, BYTES, BODY, gpu, |block, body, d| {
            for (g, to) in body[..96].chunks_exact_mut(12).enumerate() {
                let q = quants(block, g);
                pairs(&q, 0, to);
                bits(&q, 2, &mut to[8..]);
            }
            scales(|g| (scale(block, 2 * g), scale(block, 2 * g + 1)), &mut body[96..]);
            d.copy_from_slice(&block[108..]);
        });
    },
    wgsl: include_str!("../../shaders/format/q3_k.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let d = half_at(block, 108);
        for (g, to) in to.chunks_exact_mut(GROUP).enumerate() {
            let q = quants(block, g);
            for (i, (q, to)) in q.iter().zip(to).enumerate() {
                *to = d * (f32::from(scale(block, 2 * g + i / 16)) - 32.0) * (f32::from(*q) - 4.0);
            }
        }
    }
}

fn quants(block: &[u8], g: usize) -> [u8; GROUP] {
    let low = |i: usize| block[32 + g / 4 * 32 + i] >> (2 * (g % 4)) & 3;
    std::array::from_fn(|i| low(i) | (block[i] >> g & 1) << 2)
}

/// s of a run.
fn scale(block: &[u8], run: usize) -> u8 {
    block[96 + run % 8] >> (run / 8 * 4) & 15 | (block[104 + run % 4] >> (run / 4 * 2) & 3) << 4
}
