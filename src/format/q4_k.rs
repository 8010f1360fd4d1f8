use super::group::{LEN as GROUP, half_at, nibbles, planes, planes_units, scales, set_half};
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
    encode: Some(encode),
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
    packed: true,
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

/// Each group gets the scale and minimum that [`fit`] finds; these become 6 bits of the largest of the block, and the
/// quants are rounded anew with what is left of them.
fn encode(weights: &[f32], bytes: &mut [u8]) {
    for (from, block) in weights.chunks_exact(LEN).zip(bytes.as_chunks_mut::<BYTES>().0) {
        let groups = from.as_chunks::<GROUP>().0;
        let fits: [(f32, f32); LEN / GROUP] = std::array::from_fn(|g| fit(&groups[g]));
        let most = fits.iter().fold((0f32, 0f32), |most, fit| (most.0.max(fit.0), most.1.max(fit.1)));
        let six = |x: f32, most: f32| if most > 0.0 { (x * (63.0 / most)).round().min(63.0) as u8 } else { 0 };
        block.fill(0);
        set_half(block, 0, most.0 / 63.0);
        set_half(block, 2, most.1 / 63.0);
        let (d, dmin) = (half_at(block, 0), half_at(block, 2));
        for (g, (group, fit)) in groups.iter().zip(fits).enumerate() {
            let (s, m) = (six(fit.0, most.0), six(fit.1, most.1));
            set_scale(&mut block[4..16], g, s, m);
            let (d, m) = (d * f32::from(s), dmin * f32::from(m));
            let quants = &mut block[16 + g / 2 * GROUP..][..GROUP];
            for (w, to) in group.iter().zip(quants) {
                let q = if d > 0.0 { ((w + m) / d).round().clamp(0.0, 15.0) as u8 } else { 0 };
                *to |= q << (g % 2 * 4);
            }
        }
    }
}

/// Scale s ≥ 0 and minimum m ≥ 0 that make Σ v (s q - m - w)² small with quants q from 0 to 15, where v = |w| plus the root
/// mean square. q is rounded from the best minimum so far with steps around that of the range; for each q the best s and m
/// are those of least squares.
fn fit(weights: &[f32; GROUP]) -> (f32, f32) {
    const STEPS: i32 = 10;
    let rms = (weights.iter().map(|w| w * w).sum::<f32>() / GROUP as f32).sqrt();
    let (low, high) = weights.iter().fold((0f32, f32::MIN), |(low, high), w| (low.min(*w), high.max(*w)));
    if high <= low {
        return (0.0, -low);
    }
    let mut best = ((high - low) / 15.0, -low);
    let mut least = f32::INFINITY;
    for step in -STEPS..=STEPS {
        let (_, minimum) = best;
        let inverse = (15.0 + 0.1 * step as f32) / (high + minimum);
        let [mut v1, mut vq, mut vqq, mut vw, mut vwq] = [0f32; 5];
        let quants: [f32; GROUP] = std::array::from_fn(|i| ((weights[i] + minimum) * inverse).round().clamp(0.0, 15.0));
        for (w, q) in weights.iter().zip(quants) {
            let v = rms + w.abs();
            v1 += v;
            vq += v * q;
            vqq += v * q * q;
            vw += v * w;
            vwq += v * w * q;
        }
        let determinant = v1 * vqq - vq * vq;
        if determinant <= 0.0 {
            continue;
        }
        let (mut s, mut m) = ((v1 * vwq - vw * vq) / determinant, (vq * vwq - vqq * vw) / determinant);
        if m < 0.0 {
            (s, m) = (vwq / vqq, 0.0);
        }
        let error = |(w, q): (&f32, &f32)| (rms + w.abs()) * (s * q - m - w).powi(2);
        let error = weights.iter().zip(&quants).map(error).sum();
        if s > 0.0 && error < least {
            (best, least) = ((s, m), error);
        }
    }
    best
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

/// Writes what [`scale`] reads into zeros.
fn set_scale(bytes: &mut [u8], g: usize, s: u8, m: u8) {
    match g {
        0..4 => {
            bytes[g] |= s;
            bytes[g + 4] |= m;
        }
        _ => {
            bytes[g + 4] |= s & 15 | m << 4;
            bytes[g - 4] |= s >> 4 << 6;
            bytes[g] |= m >> 4 << 6;
        }
    }
}
