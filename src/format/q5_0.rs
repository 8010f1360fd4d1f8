use super::Format;
use super::group::{LEN, bits, half_at, planes, planes_units};

const BYTES: usize = 22;

/// Blocks of 32 quants q of 5 bits and an f16 scale d: weight = d (q - 16).
///
/// In the checkpoint a block is d, 4 bytes of high bits, then nibbles as in Q4_0. On the GPU the nibbles of a row come
/// first, a unit for each block, then the high bits in the order of `group::bits`, a word for each, then all d.
///
/// d q is exact in f32 (11 + 5 bits).
pub static Q5_0: Format = Format {
    name: "Q5_0",
    ggml: 6,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    units: |cols| planes_units(cols.div_ceil(LEN), &[16, 4, 2]),
    pack_row: |row, units| {
        planes(row, units, [16, 4, 2], |block: &[u8; BYTES], [q, high, d]| {
            d.copy_from_slice(&block[..2]);
            bits(&quants(&block[2..]), 4, high);
            q.copy_from_slice(&block[6..]);
        });
    },
    packed: true,
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
    let (high, low) = bytes[..20].split_at(4);
    std::array::from_fn(|i| low[i % 16] >> (i / 16 * 4) & 15 | (high[i / 8] >> (i % 8) & 1) << 4)
}
