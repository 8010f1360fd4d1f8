use super::Format;
use super::group::{LEN, half_at, planes, planes_units};

const BYTES: usize = 18;

/// The values of nibbles 0 to 15.
pub(super) const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Blocks of 32 nibbles q and an f16 scale d: weight = d v\[q\] with a table v of 16 integers.
///
/// Both layouts are those of Q4_0. d v is exact in f32 (11 + 7 bits).
pub static IQ4_NL: Format = Format {
    name: "IQ4_NL",
    ggml: 20,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    units: |cols| planes_units(cols.div_ceil(LEN), &[16, 2]),
    pack_row: |row, units| {
        planes(row, units, [16, 2], |block: &[u8; BYTES], [q, d]| {
            d.copy_from_slice(&block[..2]);
            q.copy_from_slice(&block[2..]);
        });
    },
    packed: false,
    wgsl: include_str!("../../shaders/format/iq4_nl.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        values(half_at(block, 0), &VALUES, &block[2..], to);
    }
}

/// d times the values of nibbles; low ones are weights 0 to 15, high ones 16 to 31.
pub(super) fn values(d: f32, table: &[i8; 16], nibbles: &[u8], to: &mut [f32]) {
    let (low, high) = to.split_at_mut(LEN / 2);
    for ((q, low), high) in nibbles.iter().zip(low).zip(high) {
        *low = d * f32::from(table[usize::from(q & 15)]);
        *high = d * f32::from(table[usize::from(q >> 4)]);
    }
}
