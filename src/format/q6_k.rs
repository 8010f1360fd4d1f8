use super::group::{LEN as GROUP, half_at, nibbles, pairs, planes, planes_units};
use super::{Format, UNIT};

const LEN: usize = 256;
const BYTES: usize = 210;

/// Blocks of 16 runs of 16 weights: weight = d s (q - 32), with f16 d of the block, s of 8 signed bits of the run and q
/// of 6 bits.
///
/// In the checkpoint a block is 128 bytes of nibbles (byte 64 n + i has weight 128 n + i low and 128 n + 64 + i high),
/// 64 bytes of bits 4 and 5 (byte 32 n + i has weights 128 n + i and those 32, 64 and 96 on, low bits first), 16 bytes
/// of s, d. On the GPU the nibbles of a row come first, a unit for each group in the order of `group::nibbles`, then bits 4
/// and 5, two words for each group in the order of `group::pairs`, then s, a unit for each block, then all d.
///
/// d s q is exact in f32 (11 + 7 + 5 bits; -128 and -32 are powers of two).
pub static Q6_K: Format = Format {
    name: "Q6_K",
    ggml: 14,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    units: |cols| planes_units(cols / LEN, &[128, 64, 16, 2]),
    pack_row: |row, units| {
        planes(row, units, [128, 64, 16, 2], |block: &[u8; BYTES], [low, high, s, d]| {
            for (g, (low, high)) in low.chunks_exact_mut(UNIT).zip(high.chunks_exact_mut(8)).enumerate() {
                let q = quants(block, g);
                nibbles(&q, low);
                pairs(&q, 4, high);
            }
            s.copy_from_slice(&block[192..208]);
            d.copy_from_slice(&block[208..]);
        });
    },
    packed: true,
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
    let low = &block[64 * half + quarter % 2 * 32..][..GROUP];
    let high = &block[128 + 32 * half..][..GROUP];
    std::array::from_fn(|i| low[i] >> (quarter / 2 * 4) & 15 | (high[i] >> (2 * quarter) & 3) << 4)
}
