use super::Format;
use super::group::{LEN, half_at, planes, planes_units};

const BYTES: usize = 20;

/// Blocks of 32 nibbles q, an f16 scale d and an f16 minimum m: weight = d q + m.
///
/// A block is d, m, then 16 bytes: low nibbles are weights 0 to 15, high nibbles 16 to 31. On the GPU the nibbles of a row
/// come first, a unit for each block, then `d | m << 16` of each.
///
/// d q is exact in f32 (11 + 4 bits): a fused and a separate addition of m round alike.
pub static Q4_1: Format = Format {
    name: "Q4_1",
    ggml: 3,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    units: |cols| planes_units(cols.div_ceil(LEN), &[16, 4]),
    pack_row: |row, units| {
        planes(row, units, [16, 4], |block: &[u8; BYTES], [q, dm]| {
            dm.copy_from_slice(&block[..4]);
            q.copy_from_slice(&block[4..]);
        });
    },
    packed: true,
    wgsl: include_str!("../../shaders/format/q4_1.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let (d, m) = (half_at(block, 0), half_at(block, 2));
        let (low, high) = to.split_at_mut(LEN / 2);
        for ((q, low), high) in block[4..].iter().zip(low).zip(high) {
            *low = d * f32::from(q & 15) + m;
            *high = d * f32::from(q >> 4) + m;
        }
    }
}
