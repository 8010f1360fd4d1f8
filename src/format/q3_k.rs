use super::Format;
use super::group::{LEN as GROUP, bits, half_at, pairs, planes, planes_units, scales};

const LEN: usize = 256;
const BYTES: usize = 110;

/// Blocks of 16 runs of 16 weights: weight = d (s - 32) (q - 4), with f16 d of the block, s of 6 bits of the run and q
/// of 3 bits.
///
/// In the checkpoint a block is 32 bytes of bit 2 of q (byte i has weights i, 32 + i, …, low bits first), 64 bytes of
/// bits 0 and 1 as in Q2_K, 12 bytes of s (low nibbles of runs 0 to 7 and above them 8 to 15; then bits 4 and 5 of runs
/// 0 to 3 and above them 4 to 7, …), d. On the GPU bits 0 and 1 of a row come first, two words for each group in the order
/// of `group::pairs`, then bits 2, a word for each group in the order of `group::bits`, then a unit for each block: s in the
/// order of `group::scales` and d in a word of its own, which makes a block 2 % longer.
///
/// d s q is exact in f32 (11 + 5 + 2 bits).
pub static Q3_K: Format = Format {
    name: "Q3_K",
    ggml: 11,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    units: |cols| planes_units(cols / LEN, &[64, 32, 16]),
    pack_row: |row, units| {
        planes(row, units, [64, 32, 16], |block: &[u8; BYTES], [low, high, s]| {
            for (g, (low, high)) in low.chunks_exact_mut(8).zip(high.chunks_exact_mut(4)).enumerate() {
                let q = quants(block, g);
                pairs(&q, 0, low);
                bits(&q, 2, high);
            }
            scales(|g| (scale(block, 2 * g), scale(block, 2 * g + 1)), s);
            s[12..14].copy_from_slice(&block[108..]);
        });
    },
    packed: false,
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

fn quants(block: &[u8; BYTES], g: usize) -> [u8; GROUP] {
    let low = &block[32 + g / 4 * 32..][..GROUP];
    std::array::from_fn(|i| low[i] >> (2 * (g % 4)) & 3 | (block[i] >> g & 1) << 2)
}

/// s of a run.
fn scale(block: &[u8], run: usize) -> u8 {
    block[96 + run % 8] >> (run / 8 * 4) & 15 | (block[104 + run % 4] >> (run / 4 * 2) & 3) << 4
}
