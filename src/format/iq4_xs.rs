use super::Format;
use super::group::{LEN as GROUP, half_at, planes, planes_units};
use super::iq4_nl::{VALUES, values};

const LEN: usize = 256;
const BYTES: usize = 136;

/// Blocks of 8 groups of 32 nibbles q: weight = d (s - 32) v\[q\], with f16 d of the block, s of 6 bits of the group
/// and IQ4_NL's table v.
///
/// A block is d, 2 bytes of bits 4 and 5 of s, 4 bytes of its low nibbles, both group 0 first from the low bits on,
/// then q of each group as in Q4_0. On the GPU the q of a row come first, a unit for each group, then the first 8 bytes of
/// each block.
///
/// d s v is exact in f32 (11 + 5 + 7 bits; -32 is a power of two).
pub static IQ4_XS: Format = Format {
    name: "IQ4_XS",
    ggml: 23,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    units: |cols| planes_units(cols / LEN, &[128, 8]),
    pack_row: |row, units| {
        planes(row, units, [128, 8], |block: &[u8; BYTES], [q, ds]| {
            ds.copy_from_slice(&block[..8]);
            q.copy_from_slice(&block[8..]);
        });
    },
    packed: false,
    wgsl: include_str!("../../shaders/format/iq4_xs.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let (d, high) = (half_at(block, 0), u16::from_le_bytes([block[2], block[3]]));
        for (g, to) in to.chunks_exact_mut(GROUP).enumerate() {
            let s = block[4 + g / 2] >> (g % 2 * 4) & 15 | ((high >> (2 * g) & 3) as u8) << 4;
            values(d * (f32::from(s) - 32.0), &VALUES, &block[8 + 16 * g..][..16], to);
        }
    }
}
