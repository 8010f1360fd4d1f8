use super::Format;
use super::group::{LEN, half_at, planes, planes_units};

const BYTES: usize = 18;

/// Blocks of 32 nibbles q and an f16 scale d: weight = d (q - 8).
///
/// In the checkpoint a block is d, then 16 bytes: low nibbles are weights 0 to 15, high nibbles 16 to 31. On the GPU the
/// nibbles of a row come first, a unit for each block, then all d.
///
/// d q is exact in f32 (11 + 4 bits).
pub static Q4_0: Format = Format {
    name: "Q4_0",
    ggml: 2,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    units: |cols| planes_units(cols.div_ceil(LEN), &[16, 2]),
    pack_row: |row, units| {
        planes(row, units, [16, 2], |block: &[u8; BYTES], [q, d]| {
            d.copy_from_slice(&block[..2]);
            q.copy_from_slice(&block[2..]);
        });
    },
    wgsl: include_str!("../../shaders/format/q4_0.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let d = half_at(block, 0);
        let (low, high) = to.split_at_mut(LEN / 2);
        for ((q, low), high) in block[2..].iter().zip(low).zip(high) {
            *low = d * (f32::from(q & 15) - 8.0);
            *high = d * (f32::from(q >> 4) - 8.0);
        }
    }
}
