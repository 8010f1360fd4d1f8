//! How weights are stored: one file for each format here and in `shaders/format/`.

mod bf16;
mod f16;
mod f32;
mod group;
mod iq4_nl;
mod iq4_xs;
mod mxfp4;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;

pub use {bf16::BF16, f16::F16, f32::F32};
pub use {iq4_nl::IQ4_NL, iq4_xs::IQ4_XS, mxfp4::MXFP4};
pub use {q2_k::Q2_K, q3_k::Q3_K, q4_k::Q4_K, q5_k::Q5_K, q6_k::Q6_K};
pub use {q4_0::Q4_0, q4_1::Q4_1, q5_0::Q5_0, q5_1::Q5_1, q8_0::Q8_0};

/// A weight format: its blocks in the checkpoint, its layout in GPU memory, and its decoder.
///
/// A weight is a matrix of `rows × cols`, rows contiguous. In GPU memory a row is whole units of 16 bytes, padded with zeros
/// to whole groups of 32 weights, so a kernel never splits a group; the units of [`SLAB`] rows alternate, so that the loads of
/// neighbouring invocations, which work on neighbouring rows, are next to each other.
///
/// Decoding gives the f32 of ggml's definition, and so does the GPU, bit for bit: all products of scales and quants are
/// exact in f32, and what is left is one addition or none, so that neither the order of operations nor a fused
/// multiplication can make a difference. Numbers below 2^-126 alone are taken for 0 by some devices.
#[derive(Debug)]
pub struct Format {
    /// Name as ggml prints it.
    pub name: &'static str,
    /// ggml's type number.
    pub ggml: u32,
    /// Weights in a block.
    pub block_len: usize,
    /// Bytes of a block in the checkpoint.
    pub block_bytes: usize,
    /// Decodes whole blocks: `bytes` to `bytes.len() / block_bytes * block_len` weights.
    pub decode: fn(bytes: &[u8], weights: &mut [f32]),
    /// Rounds whole blocks of finite weights: `weights.len() / block_len * block_bytes` bytes. None where checkpoints are
    /// read only.
    pub encode: Option<Encode>,
    /// Units in GPU memory of a row of `cols` weights.
    pub units: fn(cols: usize) -> usize,
    /// Fills the zeroed units of a row from the checkpoint's bytes of it.
    pub pack_row: fn(row: &[u8], units: &mut [u8]),
    /// Whether the WGSL also gives the quants as int8, four in a word.
    pub packed: bool,
    /// WGSL that reads one group of 32 weights from the binding `w: array<vec4<u32>>`; see `shaders/common/rows.wgsl`.
    pub wgsl: &'static str,
}

/// Bytes of a unit.
pub const UNIT: usize = 16;

/// Rows whose units alternate in GPU memory.
pub const SLAB: usize = 8;

/// Rounds weights to the blocks of a format: the first argument to the second.
pub type Encode = fn(&[f32], &mut [u8]);

/// Every supported format.
pub static ALL: &[&Format] = &[
    &F32, &F16, &BF16, &Q8_0, &Q4_0, &Q4_1, &Q5_0, &Q5_1, &Q2_K, &Q3_K, &Q4_K, &Q5_K, &Q6_K, &IQ4_NL, &IQ4_XS, &MXFP4,
];

/// Formats are equal when their names are.
impl PartialEq for Format {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}
impl Eq for Format {}

impl Format {
    /// The format of a ggml type number.
    pub fn from_ggml(number: u32) -> Option<&'static Format> {
        ALL.iter().copied().find(|f| f.ggml == number)
    }

    /// Bytes of `len` weights in the checkpoint; `None` unless they are whole blocks.
    pub fn checkpoint_bytes(&self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len) {
            return None;
        }
        (len / self.block_len).checked_mul(self.block_bytes)
    }

    /// Bytes in GPU memory of `rows × cols` weights.
    pub fn gpu_bytes(&self, rows: usize, cols: usize) -> usize {
        rows.next_multiple_of(SLAB) * (self.units)(cols) * UNIT
    }

    /// The GPU memory of `SLAB` or fewer rows, given as the checkpoint has each, from which on `gpu` ends.
    pub fn pack_slab(&self, rows: impl Iterator<Item = impl AsRef<[u8]>>, gpu: &mut [u8]) {
        let mut units = vec![0; gpu.len() / SLAB];
        gpu.fill(0);
        for (i, row) in rows.enumerate() {
            units.fill(0);
            (self.pack_row)(row.as_ref(), &mut units);
            for (unit, to) in units.as_chunks::<UNIT>().0.iter().zip(gpu.as_chunks_mut::<{ UNIT * SLAB }>().0) {
                to[UNIT * i..][..UNIT].copy_from_slice(unit);
            }
        }
    }
}
