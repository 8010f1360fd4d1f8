//! How weights are stored: one file for each format here and in `shaders/format/`.

mod f16;
mod f32;
mod q4_1;
mod q8_0;

pub use {f16::F16, f32::F32, q4_1::Q4_1, q8_0::Q8_0};

/// A weight format: its blocks in the checkpoint, its layout in GPU memory, and its decoder.
///
/// A weight is a matrix of `rows × cols`, rows contiguous. In GPU memory each row is padded with zeros to a whole number
/// of groups of 32 weights, so a kernel never splits a group.
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
    /// Bytes in GPU memory of `rows × cols` weights, a multiple of 4.
    pub gpu_bytes: fn(rows: usize, cols: usize) -> usize,
    /// Fills `gpu` (`gpu_bytes` long) from the checkpoint's bytes of `rows × cols` weights.
    pub repack: fn(bytes: &[u8], rows: usize, cols: usize, gpu: &mut [u8]),
    /// WGSL that reads one group of 32 weights from the binding `w: array<u32>`.
    pub wgsl: &'static str,
}

/// Every supported format.
pub static ALL: &[&Format] = &[&F32, &F16, &Q8_0, &Q4_1];

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
}
