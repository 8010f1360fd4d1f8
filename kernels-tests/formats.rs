//! Weight formats against their textbook definitions.

use farpast::format::{ALL, F16, F32, Format, Q4_1, Q8_0};

use crate::gguf_writer::encode;

#[test]
fn q4_1_decodes_as_ggml_python_does() {
    let block = hex("c02802b5a94106a0956a26afbccdafe562f90a94");
    #[rustfmt::skip]
    let expected = [
        0x3cac0000, 0xbe8d4000, 0xbdb90000, 0xbea04000, 0xbe028000, 0x3d6e0000, 0xbdb90000, 0x3e798000,
        0x3e078000, 0x3e2d8000, 0x3e798000, 0xbe028000, 0xbe748000, 0x3cac0000, 0x3d6e0000, 0xbe288000,
        0x3d6e0000, 0xbe288000, 0xbea04000, 0x3d6e0000, 0x3cac0000, 0xbdb90000, 0xbe748000, 0x3d6e0000,
        0x3dc30000, 0x3e078000, 0x3d6e0000, 0x3e538000, 0xbdb90000, 0x3e798000, 0xbea04000, 0x3cac0000,
    ];
    assert_eq!(bits(&decode(&Q4_1, &block)), expected);
}

#[test]
fn q8_0_decodes_as_ggml_python_does() {
    let block = hex("c02893c642276ad5ab2da7394551370e99b2d74c3427fa48d732a1df70aca1e92611");
    #[rustfmt::skip]
    let expected = [
        0xc0817000, 0xc009c000, 0x401cc000, 0x3fb94000, 0x407bc000, 0xbfcc4000, 0xc049e000, 0x3fd5c000,
        0xc0536000, 0x40076000, 0x4023e000, 0x40406000, 0x4002a000, 0x3f050000, 0xc074a000, 0xc0394000,
        0xbfc2c000, 0x40348000, 0x3ff70000, 0x3fb94000, 0xbe640000, 0x402b0000, 0xbfc2c000, 0x3fed8000,
        0xc061a000, 0xbf9cc000, 0x40850000, 0xc0478000, 0xc061a000, 0xbf5a8000, 0x3fb48000, 0x3f218000,
    ];
    assert_eq!(bits(&decode(&Q8_0, &block)), expected);
}

#[test]
fn f16_decodes_every_bit_pattern() {
    let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    same(&decode(&F16, &bytes), &(0..=u16::MAX).map(|h| half(h) as f32).collect::<Vec<_>>(), "F16");
}

#[test]
fn blocks_decode_by_definition() {
    let mut random = Random(1);
    for format in ALL {
        for scale in [None, Some(0), Some(1), Some(0x8000), Some(0x03ff), Some(0x7bff), Some(0x7c00), Some(0xfe00)] {
            let mut bytes = random.bytes(format.block_bytes * 50);
            if let (Some(scale), true) = (scale, format.block_len > 1) {
                bytes
                    .chunks_exact_mut(format.block_bytes)
                    .for_each(|b| b[..2].copy_from_slice(&u16::to_le_bytes(scale)));
            }
            let expected: Vec<f32> = bytes.chunks_exact(format.block_bytes).flat_map(|b| define(format, b)).collect();
            same(&decode(format, &bytes), &expected, format.name);
        }
    }
}

#[test]
fn gpu_layout_holds_the_checkpoints_weights_and_zero_padding() {
    let mut random = Random(2);
    for format in ALL {
        for rows in [1, 2, 3, 7] {
            for cols in [1, 2, 31, 32, 33, 95, 96, 160].into_iter().filter(|c| c % format.block_len == 0) {
                let bytes = random.bytes(format.checkpoint_bytes(rows * cols).unwrap());
                let mut gpu = vec![0xa5; (format.gpu_bytes)(rows, cols)];
                assert_eq!(gpu.len() % 4, 0, "{} {rows} × {cols}", format.name);
                (format.repack)(&bytes, rows, cols, &mut gpu);
                let groups = cols.div_ceil(32);
                let weights = decode(format, &bytes);
                for row in 0..rows {
                    let found = gpu_row(format, &gpu, rows, groups, row);
                    same(&found[..cols], &weights[row * cols..][..cols], format.name);
                    assert!(found[cols..].iter().all(|w| w.to_bits() == 0), "{} {rows} × {cols}: padding", format.name);
                }
            }
        }
    }
}

#[test]
fn q8_0_pads_an_odd_number_of_scales() {
    let mut gpu = vec![0xa5; (Q8_0.gpu_bytes)(3, 32)];
    (Q8_0.repack)(&Random(3).bytes(3 * 34), 3, 32, &mut gpu);
    assert_eq!((gpu.len(), &gpu[3 * 34..]), (3 * 32 + 8, &[0, 0][..]));
}

#[test]
fn encoded_weights_decode_within_half_a_step() {
    let mut random = Random(4);
    let weights: Vec<f32> = (0..320).map(|_| random.next() as i32 as f32 / i32::MAX as f32).collect();
    for (format, bound) in
        [(&F32, 0.0), (&F16, 2f32.powi(-11)), (&Q8_0, 0.51 / 127.0 + 5e-4), (&Q4_1, 1.0 / 15.0 + 2e-3)]
    {
        for (w, found) in weights.iter().zip(decode(format, &encode(format, &weights))) {
            assert!((w - found).abs() <= bound, "{}: {w} became {found}", format.name);
        }
    }
}

/// Splitmix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e3779b97f4a7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d049bb133111eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

fn decode(format: &Format, bytes: &[u8]) -> Vec<f32> {
    let mut weights = vec![f32::NAN; bytes.len() / format.block_bytes * format.block_len];
    (format.decode)(bytes, &mut weights);
    weights
}

/// The definition of one block, in f64 and rounded once.
fn define(format: &Format, b: &[u8]) -> Vec<f32> {
    let half_at = |at: usize| half(u16::from_le_bytes([b[at], b[at + 1]]));
    match format.name {
        "F32" => vec![f32::from_bits(u32::from_le_bytes(b.try_into().unwrap()))],
        "F16" => vec![half_at(0) as f32],
        "Q8_0" => (0..32).map(|i| (half_at(0) * f64::from(b[2 + i] as i8)) as f32).collect(),
        "Q4_1" => {
            let q = |i: usize| if i < 16 { b[4 + i] % 16 } else { b[4 + i - 16] / 16 };
            (0..32).map(|i| (half_at(0) * f64::from(q(i)) + half_at(2)) as f32).collect()
        }
        other => panic!("{other} is not defined"),
    }
}

/// The weights of a row, padding included, read from the GPU's layout as a shader does: by words.
fn gpu_row(format: &Format, gpu: &[u8], rows: usize, groups: usize, row: usize) -> Vec<f32> {
    let word = |i: usize| u32::from_le_bytes(gpu[4 * i..4 * i + 4].try_into().unwrap());
    let half_of = |i: usize| half((word(i / 2) >> (16 * (i % 2))) as u16);
    let first = row * groups * 32;
    let weight = |i: usize| match format.name {
        "F32" => f32::from_bits(word(first + i)),
        "F16" => half_of(first + i) as f32,
        "Q8_0" => {
            let q = (word((first + i) / 4) >> (8 * (i % 4))) as i8;
            (half_of(rows * groups * 16 + row * groups + i / 32) * f64::from(q)) as f32
        }
        "Q4_1" => {
            let group = (row * groups + i / 32) * 5;
            let q = word(group + 1 + i % 16 / 4) >> (8 * (i % 4) + if i % 32 < 16 { 0 } else { 4 }) & 15;
            (half_of(2 * group) * f64::from(q) + half_of(2 * group + 1)) as f32
        }
        other => panic!("{other} has no layout"),
    };
    (0..groups * 32).map(weight).collect()
}

/// IEEE 754 binary16 by its definition.
fn half(bits: u16) -> f64 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match (exponent, fraction) {
        (31, 0.0) => f64::INFINITY,
        (31, _) => f64::NAN,
        (0, _) => fraction * 2f64.powi(-24),
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

fn same(found: &[f32], expected: &[f32], name: &str) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        assert!(f.to_bits() == e.to_bits() || f.is_nan() && e.is_nan(), "{name}: weight {i} is {f}, not {e}");
    }
}

fn bits(weights: &[f32]) -> Vec<u32> {
    weights.iter().map(|w| w.to_bits()).collect()
}

fn hex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}
