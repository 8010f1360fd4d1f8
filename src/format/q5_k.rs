use super::group::{LEN as GROUP, bits, half_at, nibbles, planes, planes_units, scales};
use super::q4_k::scale;
use super::{Format, UNIT};

const LEN: usize = 256;
const BYTES: usize = 176;

/// Blocks of 8 groups of 32 weights: weight = d s q - dmin m, with f16 d and dmin of the block, s and m of 6 bits of
/// the group and q of 5 bits.
///
/// In the checkpoint a block is d, dmin, s and m as in Q4_K, 32 bytes of bit 4 of q (byte i has weights i, 32 + i, …,
/// low bits first), then nibbles as in Q4_K. On the GPU the nibbles of a row come first, a unit for each group in the order
/// of `group::nibbles`, then bits 4, a word for each group in the order of `group::bits`, then a unit for each block as in Q4_K.
///
/// d s q (11 + 6 + 5 bits) and dmin m are exact in f32, so that only the subtraction rounds, fused or not.
pub static Q5_K: Format = Format {
    name: "Q5_K",
    ggml: 13,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    units: |cols| planes_units(cols / LEN, &[128, 32, 16]),
    pack_row: |row, units| {
        planes(row, units, [128, 32, 16], |block: &[u8; BYTES], [low, high, s]| {
            for (g, (low, high)) in low.chunks_exact_mut(UNIT).zip(high.chunks_exact_mut(4)).enumerate() {
                let q = quants(block, g);
                nibbles(&q, low);
                bits(&q, 4, high);
            }
            s[..4].copy_from_slice(&block[..4]);
            scales(|g| scale(&block[4..], g), &mut s[4..]);
        });
    },
    packed: true,
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
    let low = &block[48 + g / 2 * 32..][..GROUP];
    std::array::from_fn(|i| low[i] >> (g % 2 * 4) & 15 | (block[16 + i] >> g & 1) << 4)
}
