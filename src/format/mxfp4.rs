use super::Format;
use super::group::{LEN, planes, planes_units};
use super::iq4_nl::values;

const BYTES: usize = 17;

/// Twice the numbers of E2M1.
const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Blocks of 32 numbers of 4 bits (E2M1) and an exponent e of 8 bits (E8M0): weight = 2^(e - 128) v\[q\], v twice
/// E2M1's number. Source: OCP Microscaling Formats 1.0; that -0 and e = 255 are no exceptions is ggml's definition.
///
/// In the checkpoint a block is e, then 16 bytes: low nibbles are weights 0 to 15, high nibbles 16 to 31. On the GPU the
/// nibbles of a row come first, a unit for each block, then all e.
///
/// The product is exact or overflows. The scale is subnormal where e < 2: many devices take it for 0.
pub static MXFP4: Format = Format {
    name: "MXFP4",
    ggml: 39,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: None,
    units: |cols| planes_units(cols.div_ceil(LEN), &[16, 1]),
    pack_row: |row, units| {
        planes(row, units, [16, 1], |block: &[u8; BYTES], [q, e]| {
            e.copy_from_slice(&block[..1]);
            q.copy_from_slice(&block[1..]);
        });
    },
    packed: false,
    wgsl: include_str!("../../shaders/format/mxfp4.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let d = match block[0] {
            e @ 0..2 => f32::from_bits(0x0020_0000 << e),
            e => f32::from_bits((u32::from(e) - 1) << 23),
        };
        values(d, &VALUES, &block[1..], to);
    }
}
