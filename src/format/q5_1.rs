use super::Format;
use super::group::{LEN, bits, half_at, planes, planes_units};
use super::q5_0::quants;

const BYTES: usize = 24;

/// Blocks of 32 quants q of 5 bits, an f16 scale d and an f16 minimum m: weight = d q + m.
///
/// In the checkpoint a block is d, m, 4 bytes of high bits, then nibbles as in Q4_1. On the GPU the nibbles of a row come
/// first, a unit for each block, then two words for each: `d | m << 16` and the high bits in the order of `group::bits`.
///
/// d q is exact in f32 (11 + 5 bits): a fused and a separate addition of m round alike.
pub static Q5_1: Format = Format {
    name: "Q5_1",
    ggml: 7,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    units: |cols| planes_units(cols.div_ceil(LEN), &[16, 8]),
    pack_row: |row, units| {
        planes(row, units, [16, 8], |block: &[u8; BYTES], [q, rest]| {
            rest[..4].copy_from_slice(&block[..4]);
            bits(&quants(&block[4..]), 4, &mut rest[4..]);
            q.copy_from_slice(&block[8..]);
        });
    },
    packed: true,
    wgsl: include_str!("../../shaders/format/q5_1.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        for (q, to) in quants(&block[4..]).iter().zip(to) {
            *to = d * f32::from(*q) + m;
        }
    }
}
