use super::group::{LEN as GROUP, half_at, nibbles, planes, planes_units, scales};
use super::{Format, UNIT};

const LEN: usize = 256;
const BYTES: usize = 144;

/// Blocks of 8 groups of 32 weights: weight = d s q - dmin m, with f16 d and dmin of the block, s and m of 6 bits of
/// the group and q of 4 bits.
///
/// In the checkpoint a block is d, dmin, 12 bytes of s and m (see `scale`), then 128 bytes of q: byte 32 n + i has
/// weight 64 n + i low and 64 n + 32 + i high. On the GPU the q of a row come first, a unit for each group in the order of
/// `group::nibbles`, then a unit for each block: `d | dmin << 16`, then s and m in the order of `group::scales`.
///
/// d s q (11 + 6 + 4 bits) and dmin m are exact in f32, so that only the subtraction rounds, fused or not. d is mostly
/// a subnormal f16, which devices must not take for 0.
pub static Q4_K: Format = Format {
    name: "Q4_K",
    ggml: 12,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    units: |cols| planes_units(cols / LEN, &[128, 16]),
    pack_row: |row, units| {
        planes(row, units, [128, 16], |block: &[u8; BYTES], [q, s]| {
            for (g, to) in q.chunks_exact_mut(UNIT).enumerate() {
                nibbles(&quants(block, g), to);
            }
            s[..4].copy_from_slice(&block[..4]);
            scales(|g| scale(&block[4..], g), &mut s[4..]);
        });
    },
    wgsl: include_str!("../../shaders/format/q4_k.wgsl"),
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
    let bytes = &block[16 + g / 2 * 32..][..GROUP];
    std::array::from_fn(|i| bytes[i] >> (g % 2 * 4) & 15)
}

/// s and m of group g: in bits 0 to 5 of bytes g and 4 + g for the first four; for the others the nibbles of byte 4 +
/// g, and above them bits 6 and 7 of bytes g - 4 and g.
pub(super) fn scale(bytes: &[u8], g: usize) -> (u8, u8) {
    match g {
        0..4 => (bytes[g] & 63, bytes[g + 4] & 63),
        _ => (bytes[g + 4] & 15 | bytes[g - 4] >> 6 << 4, bytes[g + 4] >> 4 | bytes[g] >> 6 << 4),
    }
}
