use super::Format;
use super::group::{LEN, half_at, planes, planes_units, set_half};

const BYTES: usize = 34;

/// Blocks of 32 signed bytes q and an f16 scale d: weight = d q.
///
/// In the checkpoint a block is d, then q. On the GPU the q of a row come first, two units for each block, then all d.
///
/// d q is exact in f32 (11 + 7 bits).
pub static Q8_0: Format = Format {
    name: "Q8_0",
    ggml: 8,
    block_len: LEN,
    block_bytes: BYTES,
    decode,
    encode: Some(encode),
    units: |cols| planes_units(cols.div_ceil(LEN), &[32, 2]),
    pack_row: |row, units| {
        planes(row, units, [32, 2], |block: &[u8; BYTES], [q, d]| {
            d.copy_from_slice(&block[..2]);
            q.copy_from_slice(&block[2..]);
        });
    },
    packed: true,
    wgsl: include_str!("../../shaders/format/q8_0.wgsl"),
};

fn decode(bytes: &[u8], weights: &mut [f32]) {
    for (block, to) in bytes.as_chunks::<BYTES>().0.iter().zip(weights.chunks_exact_mut(LEN)) {
        let d = half_at(block, 0);
        for (q, to) in block[2..].iter().zip(to) {
            *to = d * f32::from(*q as i8);
        }
    }
}

/// The largest magnitude becomes 127.
fn encode(weights: &[f32], bytes: &mut [u8]) {
    for (from, block) in weights.chunks_exact(LEN).zip(bytes.as_chunks_mut::<BYTES>().0) {
        let d = from.iter().fold(0f32, |most, w| most.max(w.abs())) / 127.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        set_half(block, 0, d);
        for (w, q) in from.iter().zip(&mut block[2..]) {
            *q = (w * inverse).round() as i8 as u8;
        }
    }
}
