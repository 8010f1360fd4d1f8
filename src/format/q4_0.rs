use super::Format;
use super::group::{LEN, half_at, planes, planes_units, set_half};

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
    encode: Some(encode),
    units: |cols| planes_units(cols.div_ceil(LEN), &[16, 2]),
    pack_row: |row, units| {
        planes(row, units, [16, 2], |block: &[u8; BYTES], [q, d]| {
            d.copy_from_slice(&block[..2]);
            q.copy_from_slice(&block[2..]);
        });
    },
    packed: true,
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

/// The weight of the largest magnitude becomes -8, so that its sign has all 16 steps.
fn encode(weights: &[f32], bytes: &mut [u8]) {
    for (from, block) in weights.chunks_exact(LEN).zip(bytes.as_chunks_mut::<BYTES>().0) {
        let d = from.iter().fold(0f32, |most, w| if w.abs() > most.abs() { *w } else { most }) / -8.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        // In f64 the product is exact, so that no fused multiplication changes a quant.
        let quant = |w: f32| (f64::from(w) * f64::from(inverse) + 8.5).clamp(0.0, 15.0) as u8;
        set_half(block, 0, d);
        for (i, q) in block[2..].iter_mut().enumerate() {
            *q = quant(from[i]) | quant(from[LEN / 2 + i]) << 4;
        }
    }
}
