use super::Format;
use super::group::{LEN as GROUP, half_at, pairs, planes, planes_units};

const LEN: usize = 256;
const BYTES: usize = 84;

/// Blocks of 16 runs of 16 weights: weight = d s q - dmin m, with f16 d and dmin of the block, s and m of 4 bits of the
/// run and q of 2 bits.
///
/// In the checkpoint a block is 16 bytes of s and m, s low, then 64 bytes of q (byte 32 n + i has weights 128 n + i and
/// those 32, 64 and 96 on, low bits first), d, dmin. On the GPU the q of a row come first, two words for each group in the
/// order of `group::pairs`, then s and m, a unit for each block, then `d | dmin << 16` of each.
///
/// d s q (11 + 4 + 2 bits) and dmin m are exact in f32, so that only the subtraction rounds, fused or not.
pub static Q2_K: Format = Format {
    name: "Q2_K",
    ggml: 10,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    units: |cols| planes_units(cols / LEN, &[64, 16, 4]),
    pack_row: |row, units| {
        planes(row, units, [64, 16, 4], |block: &[u8; BYTES], [q, sm, d]| {
            for (g, to) in q.chunks_exact_mut(8).enumerate() {
                pairs(&quants(block, g), 0, to);
            }
            sm.copy_from_slice(&block[..16]);
            d.copy_from_slice(&block[80..]);
        });
    },
    packed: false,
    wgsl: include_str!("../../shaders/format/q2_k.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let (d, dmin) = (half_at(block, 80), half_at(block, 82));
        for (g, to) in to.chunks_exact_mut(GROUP).enumerate() {
            let q = quants(block, g);
            for (i, (q, to)) in q.iter().zip(to).enumerate() {
                let scale = block[2 * g + i / 16];
                *to = d * f32::from(scale & 15) * f32::from(*q) - dmin * f32::from(scale >> 4);
            }
        }
    }
}

fn quants(block: &[u8; BYTES], g: usize) -> [u8; GROUP] {
    let bytes = &block[16 + g / 4 * 32..][..GROUP];
    std::array::from_fn(|i| bytes[i] >> (2 * (g % 4)) & 3)
}
