//! Writes GGUF files in memory for tests: valid ones by default, invalid ones through the public fields.

use farpast::format::Format;
use half::{bf16, f16};

use crate::cases::Random;

/// A GGUF file to be written.
#[derive(Clone)]
pub struct GgufWriter {
    pub magic: [u8; 4],
    pub version: u32,
    /// Of the tensor bytes; written as `general.alignment` by the caller if not 32.
    pub alignment: usize,
    pub fields: Vec<RawField>,
    pub tensors: Vec<RawTensor>,
    /// What the header says instead of the true counts.
    pub tensor_count: Option<u64>,
    pub field_count: Option<u64>,
}

/// A metadata field: key, type number, the value's bytes.
#[derive(Clone)]
pub struct RawField {
    pub key: Vec<u8>,
    pub kind: u32,
    pub value: Vec<u8>,
}

/// A tensor; `dims` contiguous first, as in the file.
#[derive(Clone)]
pub struct RawTensor {
    pub name: Vec<u8>,
    pub dims: Vec<u64>,
    pub kind: u32,
    /// Where the bytes are said to be; `None` where they are.
    pub offset: Option<u64>,
    pub bytes: Vec<u8>,
}

impl GgufWriter {
    pub fn new() -> Self {
        Self {
            magic: *b"GGUF",
            version: 3,
            alignment: 32,
            fields: vec![],
            tensors: vec![],
            tensor_count: None,
            field_count: None,
        }
    }

    pub fn raw(mut self, key: &str, kind: u32, value: impl Into<Vec<u8>>) -> Self {
        self.fields.push(RawField { key: key.into(), kind, value: value.into() });
        self
    }

    pub fn u8(self, key: &str, value: u8) -> Self {
        self.raw(key, 0, [value])
    }

    pub fn u16(self, key: &str, value: u16) -> Self {
        self.raw(key, 2, value.to_le_bytes())
    }

    pub fn u32(self, key: &str, value: u32) -> Self {
        self.raw(key, 4, value.to_le_bytes())
    }

    pub fn i32(self, key: &str, value: i32) -> Self {
        self.raw(key, 5, value.to_le_bytes())
    }

    pub fn f32(self, key: &str, value: f32) -> Self {
        self.raw(key, 6, value.to_le_bytes())
    }

    pub fn bool(self, key: &str, value: bool) -> Self {
        self.raw(key, 7, [value as u8])
    }

    pub fn string(self, key: &str, value: &str) -> Self {
        self.raw(key, 8, string(value.as_bytes()))
    }

    pub fn u64(self, key: &str, value: u64) -> Self {
        self.raw(key, 10, value.to_le_bytes())
    }

    pub fn i64(self, key: &str, value: i64) -> Self {
        self.raw(key, 11, value.to_le_bytes())
    }

    pub fn f64(self, key: &str, value: f64) -> Self {
        self.raw(key, 12, value.to_le_bytes())
    }

    pub fn strings(self, key: &str, values: &[impl AsRef<str>]) -> Self {
        self.raw(key, 9, array(8, values.iter().map(|v| string(v.as_ref().as_bytes()))))
    }

    pub fn u32s(self, key: &str, values: &[u32]) -> Self {
        self.raw(key, 9, array(4, values.iter().map(|v| v.to_le_bytes().to_vec())))
    }

    pub fn i32s(self, key: &str, values: &[i32]) -> Self {
        self.raw(key, 9, array(5, values.iter().map(|v| v.to_le_bytes().to_vec())))
    }

    pub fn f32s(self, key: &str, values: &[f32]) -> Self {
        self.raw(key, 9, array(6, values.iter().map(|v| v.to_le_bytes().to_vec())))
    }

    /// A tensor of `rows × cols` weights whose blocks are `bytes`.
    pub fn tensor(mut self, name: &str, format: &Format, rows: usize, cols: usize, bytes: Vec<u8>) -> Self {
        assert_eq!(format.checkpoint_bytes(rows * cols), Some(bytes.len()), "bytes of {name}");
        let dims = vec![cols as u64, rows as u64];
        self.tensors.push(RawTensor { name: name.into(), dims, kind: format.ggml, offset: None, bytes });
        self
    }

    /// A tensor of `rows × cols` weights, rounded to `format`.
    pub fn weights(self, name: &str, format: &Format, rows: usize, cols: usize, weights: &[f32]) -> Self {
        assert_eq!(weights.len(), rows * cols, "weights of {name}");
        self.tensor(name, format, rows, cols, encode(format, weights))
    }

    /// A vector of F32.
    pub fn vector(mut self, name: &str, weights: &[f32]) -> Self {
        let bytes = encode(&farpast::format::F32, weights);
        let dims = vec![weights.len() as u64];
        self.tensors.push(RawTensor { name: name.into(), dims, kind: 0, offset: None, bytes });
        self
    }

    pub fn write(&self) -> Vec<u8> {
        let mut out = self.magic.to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.field_count.unwrap_or(self.fields.len() as u64).to_le_bytes());
        for field in &self.fields {
            out.extend(string(&field.key));
            out.extend(field.kind.to_le_bytes());
            out.extend(&field.value);
        }
        let mut at = 0;
        for tensor in &self.tensors {
            out.extend(string(&tensor.name));
            out.extend((tensor.dims.len() as u32).to_le_bytes());
            tensor.dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
            out.extend(tensor.kind.to_le_bytes());
            out.extend(tensor.offset.unwrap_or(at as u64).to_le_bytes());
            at = (at + tensor.bytes.len()).next_multiple_of(self.alignment);
        }
        for tensor in &self.tensors {
            out.resize(out.len().next_multiple_of(self.alignment), 0);
            out.extend(&tensor.bytes);
        }
        out
    }
}

/// An array's bytes from its elements'.
pub fn array(kind: u32, elements: impl ExactSizeIterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out = kind.to_le_bytes().to_vec();
    out.extend((elements.len() as u64).to_le_bytes());
    elements.for_each(|element| out.extend(element));
    out
}

/// A string's bytes: length, text.
pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}

/// Rounds weights, whole blocks of them, to F32, F16, BF16, Q8_0 and Q4_1. Blocks of other formats have random quants, and
/// scales that give them weights up to the largest.
pub fn encode(format: &Format, weights: &[f32]) -> Vec<u8> {
    let half = |x: f32| f16::from_f32(x).to_le_bytes();
    let mut out = vec![];
    for block in weights.chunks_exact(format.block_len) {
        match format.name {
            "F32" => out.extend(block[0].to_le_bytes()),
            "F16" => out.extend(half(block[0])),
            "Q8_0" => {
                let d = block.iter().fold(0f32, |most, w| most.max(w.abs())) / 127.0;
                out.extend(half(d));
                out.extend(block.iter().map(|w| if d == 0.0 { 0 } else { (w / d).round() as i8 as u8 }));
            }
            "Q4_1" => {
                let (low, high) = block.iter().fold((f32::MAX, f32::MIN), |(low, high), w| (low.min(*w), high.max(*w)));
                let d = (high - low) / 15.0;
                let q = |w: f32| if d == 0.0 { 0 } else { ((w - low) / d).round().clamp(0.0, 15.0) as u8 };
                out.extend(half(d));
                out.extend(half(low));
                out.extend((0..16).map(|i| q(block[i]) | q(block[i + 16]) << 4));
            }
            "BF16" => out.extend(bf16::from_f32(block[0]).to_le_bytes()),
            _ => out.extend(random_block(format, block)),
        }
    }
    out
}

/// A block of random quants within the magnitude of `weights`; the same for the same weights.
fn random_block(format: &Format, weights: &[f32]) -> Vec<u8> {
    let most = weights.iter().fold(0f32, |most, w| most.max(w.abs()));
    let seed = weights.iter().fold(0, |seed: u64, w| seed.rotate_left(7) ^ u64::from(w.to_bits()));
    let mut block = Random(seed).bytes(format.block_bytes);
    let mut set = |at: usize, x: f32| block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
    match format.name {
        "Q4_0" => set(0, most / 8.0),
        "Q5_0" => set(0, most / 16.0),
        "Q5_1" => {
            set(0, most / 15.5);
            set(2, -most);
        }
        "Q2_K" => {
            set(80, most / (15.0 * 3.0));
            set(82, most / 15.0);
        }
        "Q3_K" => set(108, most / (32.0 * 4.0)),
        "Q4_K" => {
            set(0, most / (63.0 * 15.0));
            set(2, most / 63.0);
        }
        "Q5_K" => {
            set(0, most / (63.0 * 31.0));
            set(2, most / 63.0);
        }
        "Q6_K" => set(208, most / (128.0 * 32.0)),
        "IQ4_NL" => set(0, most / 127.0),
        "IQ4_XS" => set(0, most / (32.0 * 127.0)),
        "MXFP4" => block[0] = ((most / 6.0).log2().floor().clamp(-125.0, 127.0) + 127.0) as u8,
        other => panic!("no encoder of {other}"),
    }
    block
}
