//! Weight formats against their textbook definitions and goldens (see scripts/golden_formats.py), and the GPU's decoders
//! against the CPU's.

use farpast::format::{ALL, BF16, F16, F32, Format, MXFP4, Q4_0, Q4_1, Q4_K, Q8_0, SLAB, UNIT};
use farpast::kernel::{Count, Step};
use farpast::memory::{Bytes, Capacity, Element, Memory, Tensor, WeightRows, stride};
use farpast::program::{Mode, Program, Recorder};
use serde_json::Value;

use crate::cases::Random;
use crate::gguf_writer::encode;
use crate::harness::gpu;

#[test]
fn blocks_decode_as_by_ggml_python() {
    let golden: Value = serde_json::from_str(include_str!("golden/formats.json")).unwrap();
    for format in ALL {
        let blocks = golden[format.name].as_array().unwrap_or_else(|| panic!("no golden of {}", format.name));
        for block in blocks {
            let [bytes, weights] = ["block", "weights"].map(|key| hex(block[key].as_str().unwrap()));
            let expected: Vec<_> = weights.as_chunks().0.iter().map(|w| f32::from_le_bytes(*w)).collect();
            same(&decode(format, &bytes), &expected, format.name);
        }
    }
}

#[test]
fn weights_encode_as_by_ggml_python() {
    let golden: Value = serde_json::from_str(include_str!("golden/formats.json")).unwrap();
    let golden = |key: &str| hex(golden["encoded"][key].as_str().unwrap());
    let weights: Vec<_> = golden("weights").as_chunks().0.iter().map(|w| f32::from_le_bytes(*w)).collect();
    for format in [&Q8_0, &Q4_0] {
        let (found, expected) = (encoded(format, &weights), golden(format.name));
        let blocks = found.chunks(format.block_bytes).zip(expected.chunks(format.block_bytes));
        blocks.enumerate().for_each(|(i, (found, expected))| assert_eq!(found, expected, "{}, block {i}", format.name));
    }
}

#[test]
fn what_is_encoded_decodes_within_a_step() {
    let mut random = Random(11);
    for format in ALL.iter().filter(|format| format.encode.is_some()) {
        for scale in [0.1, 1.0, 300.0] {
            let weights: Vec<f32> = (0..4096).map(|_| random.signed(scale) * random.signed(1.0)).collect();
            let decoded = decode(format, &encoded(format, &weights));
            for (block, found) in weights.chunks(32).zip(decoded.chunks(32)) {
                let most = block.iter().fold(0f32, |most, w| most.max(w.abs()));
                let step = match format.name {
                    "F16" => most / 1024.0,
                    "Q8_0" => most / 127.0,
                    // The far end is at 7 of 8 steps.
                    "Q4_0" => most / 8.0 * 2.0,
                    // Steps of a range of twice the largest; the search may leave an end a step outside of the quants, and
                    // scale and minimum are multiples of a 63rd of the block's largest.
                    "Q4_K" => 2.0 * (2.0 * most / 15.0) + 2.0 * scale / 63.0,
                    other => panic!("no bound for {other}"),
                };
                for (w, f) in block.iter().zip(found) {
                    let error = (w - f).abs();
                    // And the scale is rounded to f16.
                    assert!(error <= step * 0.5 + most / 2048.0 + 1e-7, "{}: {w} became {f}", format.name);
                }
            }
        }
    }
}

#[test]
fn q4_k_encodes_normal_weights_to_the_precision_of_a_search() {
    let mut random = Random(12);
    // A sum of uniform numbers is nearly normal.
    let weights: Vec<f32> = (0..256 * 200).map(|_| (0..12).map(|_| random.signed(0.01)).sum()).collect();
    let rms = |values: &[f32]| (values.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / values.len() as f64).sqrt();
    let decoded = decode(&Q4_K, &encoded(&Q4_K, &weights));
    let errors: Vec<_> = weights.iter().zip(&decoded).map(|(a, b)| a - b).collect();
    let relative = rms(&errors) / rms(&weights);
    // ggml's encoder: 0.0701 of weights of this distribution.
    println!("Q4_K: {relative:.4} of the weights");
    assert!(relative < 0.0715, "{relative}");
}

#[test]
fn extreme_weights_encode_without_panic() {
    for format in ALL.iter().filter(|format| format.encode.is_some()) {
        for w in [0.0, -0.0, 1e-45, -1e-38, f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            let all = vec![w; 256];
            let one: Vec<_> = (0..256).map(|i| if i == 77 { w } else { i as f32 }).collect();
            for weights in [all, one] {
                assert_eq!(encoded(format, &weights).len(), format.checkpoint_bytes(256).unwrap());
            }
        }
        for w in [0.0, 1.0, -3.0] {
            let found = decode(format, &encoded(format, &[w; 256]));
            assert!(found.iter().all(|f| (f - w).abs() <= w.abs() * 0.01), "{}: {w} became {}", format.name, found[0]);
        }
    }
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
            if let Some(scale) = scale {
                for block in bytes.chunks_exact_mut(format.block_bytes) {
                    halves(format).iter().for_each(|at| block[*at..at + 2].copy_from_slice(&u16::to_le_bytes(scale)));
                }
            }
            let expected: Vec<f32> = bytes.chunks_exact(format.block_bytes).flat_map(|b| define(format, b)).collect();
            same(&decode(format, &bytes), &expected, format.name);
        }
    }
}

#[test]
fn gpu_layout_holds_the_checkpoints_weights_and_zero_padding() {
    let mut random = Random(2);
    for format in [&F32, &F16, &BF16, &Q8_0, &Q4_1] {
        for rows in [1, 2, 7, 8, 9, 17] {
            for cols in [1, 2, 31, 32, 33, 95, 96, 160].into_iter().filter(|c| c % format.block_len == 0) {
                let bytes = random.bytes(format.checkpoint_bytes(rows * cols).unwrap());
                let gpu = pack(format, rows, cols, &bytes);
                let weights = decode(format, &bytes);
                for row in 0..rows.next_multiple_of(SLAB) {
                    let found = gpu_row(format, &gpu, cols, row);
                    let (real, padding) = found.split_at(if row < rows { cols } else { 0 });
                    same(real, weights.get(row * cols..).map_or(&[], |w| &w[..real.len()]), format.name);
                    assert!(padding.iter().all(|w| w.to_bits() == 0), "{} {rows} × {cols}: padding", format.name);
                }
            }
        }
    }
}

#[test]
fn units_of_eight_rows_alternate() {
    let bytes = Random(3).bytes(11 * 64);
    let gpu = pack(&F32, 11, 16, &bytes);
    for (row, from) in bytes.chunks(64).enumerate() {
        for (unit, from) in from.chunks(UNIT).enumerate() {
            let at = row / SLAB * 64 + SLAB * unit + row % SLAB;
            assert_eq!(gpu[UNIT * at..][..UNIT], *from, "unit {unit} of row {row}");
        }
    }
}

#[test]
fn packing_moves_every_bit_and_pads_with_zeros() {
    let mut random = Random(7);
    for format in ALL {
        let bytes = vec![0xff; format.checkpoint_bytes(9 * format.block_len).unwrap()];
        let (gpu, other) = (pack(format, 9, format.block_len, &bytes), random.bytes(bytes.len()));
        assert_eq!(ones(&gpu), 8 * bytes.len() as u32, "{}", format.name);
        let packed = pack(format, 9, format.block_len, &other);
        assert_eq!(ones(&packed), ones(&other), "{}", format.name);
        assert!(gpu.iter().zip(&packed).all(|(ones, packed)| packed & !ones == 0), "{}: padding", format.name);
    }
}

fn ones(bytes: &[u8]) -> u32 {
    bytes.iter().map(|b| b.count_ones()).sum()
}

#[test]
fn gpu_layout_grows_by_slabs_and_hardly_beyond_the_checkpoint() {
    for (cols, percent) in [(576, 5), (768, 2), (1280, 3), (2880, 1), (4096, 2)] {
        for format in ALL.iter().filter(|f| cols % f.block_len == 0) {
            let bytes = |rows| format.gpu_bytes(rows, cols);
            // What the split of a weight in parts relies on.
            assert!((1..=40).all(|rows| bytes(rows) == rows.div_ceil(SLAB) * bytes(SLAB)), "{}", format.name);
            let checkpoint = format.checkpoint_bytes(40 * cols).unwrap();
            let growth = bytes(40) as f64 / checkpoint as f64 * 100.0 - 100.0;
            assert!((0.0..=f64::from(percent)).contains(&growth), "{} of {cols} columns: {growth} %", format.name);
        }
    }
}

/// Random blocks hold every scale there is, infinities and subnormals among them.
#[test]
fn gpu_decodes_to_the_bits_of_the_cpu() {
    let mut random = Random(5);
    for format in ALL {
        for (rows, cols) in [(1, 256), (7, 768), (67, 1280), (3, 33), (5, 1), (4, 96), (3, 160)] {
            if cols % format.block_len == 0 {
                let bytes = random.bytes(format.checkpoint_bytes(rows * cols).unwrap());
                for parts in [1, 3] {
                    let found = embed(format, format.wgsl, rows, cols, &bytes, parts);
                    assert_eq!(found, Ok(()), "{} [{rows}, {cols}] in {parts} parts", format.name);
                }
            }
        }
    }
}

#[test]
fn gpu_decodes_every_f16_and_bf16() {
    let every: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for format in [&F16, &BF16] {
        assert_eq!(embed(format, format.wgsl, 64, 1024, &every, 1), Ok(()), "{}", format.name);
    }
}

#[test]
fn gpu_decodes_every_scale_of_every_format() {
    let mut random = Random(6);
    for format in ALL.iter().filter(|f| f.block_len > 1) {
        let rows = if halves(format).is_empty() { 256 } else { 1 << 16 };
        let mut bytes = random.bytes(rows * format.block_bytes);
        for (i, block) in bytes.chunks_exact_mut(format.block_bytes).enumerate() {
            for (at, odd) in halves(format).iter().zip([1, 0x9e37]) {
                block[*at..at + 2].copy_from_slice(&((i * odd) as u16).to_le_bytes());
            }
            if *format == &MXFP4 {
                block[0] = i as u8;
            }
        }
        let found = embed(format, format.wgsl, rows, format.block_len, &bytes, 1);
        assert_eq!(found, Ok(()), "{}", format.name);
    }
}

#[test]
fn any_other_number_in_a_decoder_is_noticed() {
    let mut random = Random(9);
    for format in ALL {
        let (rows, cols) = (33, 512);
        let bytes = random.bytes(format.checkpoint_bytes(rows * cols).unwrap());
        let mut others = other_numbers(format.wgsl);
        assert!(others.len() >= 2, "{}", format.name);
        others.retain(|wgsl| embed(format, wgsl, rows, cols, &bytes, 1).is_ok());
        // Nothing reads the minimum of a format without one.
        let unread = usize::from(format.wgsl.contains("MINIMUM = false"));
        assert!(others.len() <= unread, "{}: {}", format.name, others.join("\n"));
    }
}

/// The shader with one number of its code made one larger or less, for each; but for subnormal f32, which a device need not have.
fn other_numbers(wgsl: &str) -> Vec<String> {
    let mut others = vec![];
    let mut from = 0;
    // Embedding reads no int8: linears do.
    let decoder = wgsl.split_once("// As int8.").map_or(wgsl, |(decoder, _)| decoder);
    for line in decoder.split_inclusive('\n') {
        let code = line.split("//").next().filter(|code| !code.contains("let subnormal")).unwrap_or_default();
        for (at, _) in code.match_indices(|c: char| c.is_ascii_digit() || c == 'f') {
            // The last digit of a number with its suffix, or of a float before its point.
            let last = matches!(code.as_bytes().get(at + 1), Some(b'u' | b'.')) && !code[..at].ends_with('.');
            let digit = code.as_bytes()[at];
            if last {
                let other = if matches!(digit, b'9' | b'f') { digit - 1 } else { digit + 1 } as char;
                others.push(format!("{}{other}{}", &wgsl[..from + at], &wgsl[from + at + 1..]));
            }
        }
        from += line.len();
    }
    others
}

#[test]
fn encoded_weights_decode_within_half_a_step() {
    let mut random = Random(4);
    let weights: Vec<f32> = (0..320).map(|_| random.signed(1.0)).collect();
    for (format, bound) in [
        (&F32, 0.0),
        (&F16, 2f32.powi(-11)),
        (&BF16, 2f32.powi(-8)),
        (&Q8_0, 0.51 / 127.0 + 5e-4),
        (&Q4_1, 1.0 / 15.0 + 2e-3),
    ] {
        for (w, found) in weights.iter().zip(decode(format, &encode(format, &weights))) {
            assert!((w - found).abs() <= bound, "{}: {w} became {found}", format.name);
        }
    }
}

#[test]
fn encoded_weights_are_within_the_magnitude_of_the_weights() {
    let mut random = Random(8);
    let weights: Vec<f32> = (0..1024).map(|_| random.signed(0.05)).collect();
    for format in ALL {
        let found = decode(format, &encode(format, &weights));
        let most = found.iter().fold(0f32, |most, w| most.max(w.abs()));
        assert!((0.02..0.052).contains(&most), "{}: {most}", format.name);
    }
}

/// Embeds every row of a table on the GPU with the decoder `wgsl`; says which weight is not as the CPU decodes it.
fn embed(
    format: &'static Format,
    wgsl: &str,
    rows: usize,
    cols: usize,
    bytes: &[u8],
    parts: usize,
) -> Result<(), String> {
    let expected = decode(format, bytes);
    let format = Box::leak(Box::new(Format { wgsl: wgsl.to_string().leak(), ..*format }));
    let table = WeightRows::new(format, rows, cols, Bytes::new(bytes.to_vec()));
    let mut memory = memory(rows, if parts == 1 { usize::MAX } else { format.gpu_bytes(rows.div_ceil(parts), cols) });
    let table = memory.weight("table", table);
    let (tokens, y) = (memory.input("tokens", Count::Tokens, 4), memory.activation("y", Count::Tokens, cols));
    let drawn = memory.input("ids", Count::Outputs, 1);
    let mut recorder = Recorder::new(&memory, Mode::Prefill);
    recorder.embed(tokens, drawn, &table, y);
    let program = recorder.finish();
    // An axis of a dispatch has a limited number of workgroups.
    let ids: Vec<[u32; 4]> = (0..rows.min(65535) as u32).map(|row| [row, 0, 0, 0]).collect();
    let step = Step { n_tokens: ids.len() as u32, ..Step::default() };
    let found = run(&memory, &program, &step, &[(tokens, bytemuck::cast_slice(&ids))], y);
    // Devices may take numbers below 2^-126 for 0; such a scale of MXFP4 gives weights up to 12 times that.
    let least = f32::MIN_POSITIVE * if format == &MXFP4 { 12.0 } else { 1.0 };
    for (row, (found, expected)) in found.chunks(stride(cols)).zip(expected.chunks(cols)).enumerate() {
        for (i, (f, e)) in found.iter().zip(expected).enumerate() {
            let equal = f.to_bits() == e.to_bits() || f.is_nan() && e.is_nan();
            if !equal && (*f != 0.0 || e.abs() >= least) {
                return Err(format!("weight [{row}, {i}] is {f:e}, not {e:e}"));
            }
        }
    }
    Ok(())
}

fn memory(tokens: usize, binding: usize) -> Memory {
    let capacity = Capacity { tokens, outputs: 1, sequences: 1, context: 16, pages: 1, kv: Element::F16, binding };
    Memory::new(capacity)
}

/// Runs a program from `inputs` on the device that the tests are for; the rows of `y` that the step uses.
fn run(memory: &Memory, program: &Program, step: &Step, inputs: &[(Tensor, &[u8])], y: Tensor) -> Vec<f32> {
    let gpu = gpu();
    let buffers = gpu.allocate(memory, |_, _| ()).unwrap();
    for (t, bytes) in inputs {
        gpu.write(&buffers, *t, bytes).unwrap();
    }
    let mut prepared = gpu.prepare(&buffers, &[program]).unwrap();
    gpu.run(&buffers, &mut prepared[0], step).unwrap();
    let bytes = 4 * stride(memory.desc(y).cols) * step.n_tokens as usize;
    bytemuck::pod_collect_to_vec(&gpu.read_at(&buffers, y, 0, bytes).unwrap())
}

/// Where the f16 of a block are.
fn halves(format: &Format) -> &'static [usize] {
    match format.name {
        "F32" | "F16" | "BF16" | "MXFP4" => &[],
        "Q4_1" | "Q5_1" | "Q4_K" | "Q5_K" => &[0, 2],
        "Q2_K" => &[80, 82],
        "Q3_K" => &[108],
        "Q6_K" => &[208],
        _ => &[0],
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
        "BF16" => vec![f32::from_le_bytes([0, 0, b[0], b[1]])],
        "Q4_0" => (0..32).map(|i| (half_at(0) * (nibble(&b[2..], i) - 8.0)) as f32).collect(),
        "Q5_0" => {
            (0..32).map(|i| (half_at(0) * (nibble(&b[6..], i) + 16.0 * bit(&b[2..6], i) - 16.0)) as f32).collect()
        }
        "Q5_1" => {
            let q = |i| nibble(&b[8..], i) + 16.0 * bit(&b[4..8], i);
            (0..32).map(|i| (half_at(0) * q(i) + half_at(2)) as f32).collect()
        }
        "IQ4_NL" => (0..32).map(|i| (half_at(0) * IQ4[nibble(&b[2..], i) as usize]) as f32).collect(),
        "MXFP4" => {
            let scale = 2f64.powi(i32::from(b[0]) - 127);
            (0..32).map(|i| (scale * E2M1[nibble(&b[1..], i) as usize]) as f32).collect()
        }
        // The others as loops over blocks of 256, in the order of ggml's own.
        "Q2_K" => {
            let mut weights = vec![];
            for (half, q) in b[16..80].chunks(32).enumerate() {
                for shift in 0..4 {
                    for (l, q) in q.iter().enumerate() {
                        let scale = b[8 * half + 2 * shift + l / 16];
                        let q = f64::from(q >> (2 * shift) & 3);
                        let (s, m) = (f64::from(scale % 16), f64::from(scale / 16));
                        weights.push((half_at(80) * s * q - half_at(82) * m) as f32);
                    }
                }
            }
            weights
        }
        "Q3_K" => {
            let six = |k: usize| {
                let low = if k < 8 { b[96 + k] % 16 } else { b[96 + k - 8] / 16 };
                f64::from(low + 16 * (b[104 + k % 4] >> (2 * (k / 4)) & 3)) - 32.0
            };
            let mut weights = vec![];
            for (half, q) in b[32..96].chunks(32).enumerate() {
                for shift in 0..4 {
                    for (l, q) in q.iter().enumerate() {
                        let missing = if b[l] & 1 << (4 * half + shift) == 0 { 4.0 } else { 0.0 };
                        let q = f64::from(q >> (2 * shift) & 3) - missing;
                        weights.push((half_at(108) * six(8 * half + 2 * shift + l / 16) * q) as f32);
                    }
                }
            }
            weights
        }
        "Q4_K" | "Q5_K" => {
            let five = format.name == "Q5_K";
            let mut weights = vec![];
            for (n, q) in b[if five { 48 } else { 16 }..].chunks(32).enumerate() {
                for high in [0, 1] {
                    let g = 2 * n + high;
                    let (s, m) = match g < 4 {
                        true => (b[4 + g] % 64, b[8 + g] % 64),
                        false => (b[8 + g] % 16 + b[g] / 64 * 16, b[8 + g] / 16 + b[4 + g] / 64 * 16),
                    };
                    for (l, q) in q.iter().enumerate() {
                        let fifth = if five && b[16 + l] & 1 << g != 0 { 16.0 } else { 0.0 };
                        let q = f64::from(if high == 1 { q / 16 } else { q % 16 }) + fifth;
                        weights.push((half_at(0) * f64::from(s) * q - half_at(2) * f64::from(m)) as f32);
                    }
                }
            }
            weights
        }
        "Q6_K" => {
            let mut weights = vec![0.0; 256];
            for half in [0, 1] {
                let (low, high, scales) = (&b[64 * half..], &b[128 + 32 * half..], &b[192 + 8 * half..]);
                for l in 0..32 {
                    let quants = [
                        low[l] % 16 + high[l] % 4 * 16,
                        low[l + 32] % 16 + high[l] / 4 % 4 * 16,
                        low[l] / 16 + high[l] / 16 % 4 * 16,
                        low[l + 32] / 16 + high[l] / 64 * 16,
                    ];
                    for (n, q) in quants.into_iter().enumerate() {
                        let scale = f64::from(scales[2 * n + l / 16] as i8);
                        weights[128 * half + 32 * n + l] = (half_at(208) * scale * (f64::from(q) - 32.0)) as f32;
                    }
                }
            }
            weights
        }
        "IQ4_XS" => {
            let high = u16::from_le_bytes([b[2], b[3]]);
            let mut weights = vec![];
            for (g, q) in b[8..].chunks(16).enumerate() {
                let low = if g % 2 == 0 { b[4 + g / 2] % 16 } else { b[4 + g / 2] / 16 };
                let scale = f64::from(low) + 16.0 * f64::from(high >> (2 * g) & 3) - 32.0;
                weights.extend((0..32).map(|i| (half_at(0) * scale * IQ4[nibble(q, i) as usize]) as f32));
            }
            weights
        }
        other => panic!("{other} is not defined"),
    }
}

const IQ4: [f64; 16] = [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];
/// -0 is +0 in ggml.
const E2M1: [f64; 16] = [0., 0.5, 1., 1.5, 2., 3., 4., 6., 0., -0.5, -1., -1.5, -2., -3., -4., -6.];

/// Quant i of 16 bytes: first all low nibbles, then all high ones.
fn nibble(bytes: &[u8], i: usize) -> f64 {
    f64::from(if i < 16 { bytes[i] % 16 } else { bytes[i - 16] / 16 })
}

fn bit(bytes: &[u8], i: usize) -> f64 {
    f64::from(bytes[i / 8] >> (i % 8) & 1)
}

/// The GPU's layout of a weight, over what its memory held before.
fn pack(format: &Format, rows: usize, cols: usize, bytes: &[u8]) -> Vec<u8> {
    let mut gpu = vec![0xa5; format.gpu_bytes(rows, cols)];
    let row = bytes.len() / rows;
    for (rows, slab) in bytes.chunks(SLAB * row).zip(gpu.chunks_exact_mut(format.gpu_bytes(SLAB, cols))) {
        format.pack_slab(rows.chunks_exact(row), slab);
    }
    gpu
}

fn encoded(format: &Format, weights: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xa5; format.checkpoint_bytes(weights.len()).unwrap()];
    format.encode.expect("a format with an encoder")(weights, &mut bytes);
    bytes
}

/// The weights of a row, padding included, read from the GPU's layout as a shader does: by words.
fn gpu_row(format: &Format, gpu: &[u8], cols: usize, row: usize) -> Vec<f32> {
    let units = (format.units)(cols);
    let word = |i: usize| {
        let unit = row / SLAB * SLAB * units + row % SLAB + SLAB * (i / 4);
        u32::from_le_bytes(gpu[UNIT * unit + 4 * (i % 4)..][..4].try_into().unwrap())
    };
    let bits = |i: usize, n: usize| word(i * n / 32) >> (i * n % 32) & (u32::MAX >> (32 - n));
    let half_of = |i: usize| half(bits(i, 16) as u16);
    // Four weights and those 16 on are a unit.
    let halves = |i: usize| i / 32 * 32 + i % 16 / 4 * 8 + i / 16 % 2 * 4 + i % 4;
    let groups = cols.div_ceil(32);
    let weight = |i: usize| match format.name {
        "F32" => f32::from_bits(word(i)),
        "F16" => half_of(halves(i)) as f32,
        "BF16" => f32::from_bits(bits(halves(i), 16) << 16),
        "Q8_0" => (half_of(groups * 16 + i / 32) * f64::from(bits(i, 8) as i8)) as f32,
        "Q4_1" => {
            let q = bits(i / 32 * 32 + i % 16 * 2 + i / 16 % 2, 4);
            let dm = groups * 8 + i / 32 * 2;
            (half_of(dm) * f64::from(q) + half_of(dm + 1)) as f32
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

fn hex(text: &str) -> Vec<u8> {
    text.as_bytes().chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}
