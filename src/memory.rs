//! Names, formats and dims of all tensors of a loaded model, and host copies of them.

mod blocks;
mod stack;

use std::borrow::Cow;
use std::ops::{Deref, Range};
use std::sync::Arc;

use half::f16;
use memmap2::Mmap;
use rayon::prelude::*;

pub use blocks::Blocks;
pub use stack::WeightStack;

use crate::error::{Error, Result};
use crate::format::{Format, SLAB, UNIT};
use crate::kernel::Count;
use crate::kv;

/// Handle of a tensor in a [`Memory`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Tensor(pub(crate) usize);

/// What the elements of a tensor are. Rows of `F32` and `F16` are padded to a multiple of 4 elements of undefined value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Element {
    /// Activations, norms, tables.
    F32,
    /// KV pages; two in a word.
    F16,
    /// KV pages: blocks of 32 int8 with an f16 scale, laid out as [`Blocks`].
    Q8_0,
    /// KV pages: blocks of 32 numbers of 4 bits with an f16 scale, laid out as [`Blocks`].
    Q4_0,
    /// Step inputs and sampled ids; rows are not padded.
    U32,
    /// Weights, laid out as the format says.
    Weight(&'static Format),
}

impl Element {
    /// How KV pages may be stored, under llama.cpp's names.
    pub const KV: [(&'static str, Self); 4] =
        [("f32", Self::F32), ("f16", Self::F16), ("q8_0", Self::Q8_0), ("q4_0", Self::Q4_0)];

    /// The name of a way to store KV pages.
    pub fn kv_name(self) -> Option<&'static str> {
        Self::KV.iter().find(|(_, element)| *element == self).map(|(name, _)| *name)
    }

    /// Whether elements are stored in blocks that share a scale, so that none can be written alone.
    pub fn is_blocks(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q4_0)
    }

    /// Bytes on the device of a row of `cols` elements.
    pub fn row_bytes(self, cols: usize) -> usize {
        match self {
            Self::F32 => 4 * stride(cols),
            Self::F16 => 2 * stride(cols),
            Self::U32 => 4 * cols,
            Self::Q8_0 | Self::Q4_0 => 4 * blocks::row_words(self, cols),
            Self::Weight(format) => (format.units)(cols) * UNIT,
        }
    }
}

/// What is known of a tensor before any memory is allocated. All tensors are matrices; a vector is one row.
#[derive(Debug)]
pub struct TensorDesc {
    /// Checkpoint name of a weight, name in the model file otherwise.
    pub name: String,
    /// Kind of the elements.
    pub element: Element,
    /// Number of rows.
    pub rows: usize,
    /// Elements of a row without padding.
    pub cols: usize,
    /// The count of the step that says how many of the rows it uses; `None` when all are in use.
    pub bound: Option<Count>,
    /// Whether the values are known at load.
    pub is_table: bool,
    /// Values known at load: what is uploaded before the first step.
    pub(crate) init: Option<Host>,
}

impl TensorDesc {
    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        match self.element {
            Element::Weight(format) => format.gpu_bytes(self.rows, self.cols),
            _ => self.bytes_of(self.rows),
        }
    }

    /// Bytes of `rows` of its rows.
    pub(crate) fn bytes_of(&self, rows: usize) -> usize {
        rows * self.element.row_bytes(self.cols)
    }

    /// A host tensor of zeros, or the values known at load.
    pub fn host(&self) -> Result<Host> {
        fn zeros<T: bytemuck::Zeroable>(desc: &TensorDesc, len: usize) -> Result<Vec<T>> {
            bytemuck::try_zeroed_vec(len).map_err(|()| Error::OutOfMemory {
                device: "CPU".into(),
                what: desc.name.clone(),
                bytes: desc.bytes() as u64,
            })
        }
        Ok(match (&self.init, self.element) {
            (Some(Host::Weight(w)), _) => Host::Weight(w.in_format()),
            (Some(init), _) => init.clone(),
            (None, Element::F32) => Host::F32(zeros(self, self.rows * stride(self.cols))?),
            (None, Element::F16) => Host::F16(zeros(self, self.rows * stride(self.cols))?),
            (None, Element::U32) => Host::U32(zeros(self, self.rows * self.cols)?),
            (None, Element::Q8_0 | Element::Q4_0) => {
                Host::Blocks(Blocks::new(self.element, self.cols, zeros(self, self.bytes() / 4)?))
            }
            (None, Element::Weight(_)) => unreachable!("weight {} has no values", self.name),
        })
    }
}

impl TensorDesc {
    /// What `bytes` of whole rows of a tensor that steps write are, as the device has them; of whole pages where they are in blocks.
    pub fn host_of(&self, bytes: &[u8]) -> Host {
        match self.element {
            Element::F32 => Host::F32(bytemuck::pod_collect_to_vec(bytes)),
            Element::F16 => Host::F16(bytemuck::pod_collect_to_vec(bytes)),
            Element::U32 => Host::U32(bytemuck::pod_collect_to_vec(bytes)),
            Element::Q8_0 | Element::Q4_0 => {
                Host::Blocks(Blocks::new(self.element, self.cols, bytemuck::pod_collect_to_vec(bytes)))
            }
            Element::Weight(_) => panic!("{} is a weight", self.name),
        }
    }
}

/// Elements from one row of `cols` to the next.
pub const fn stride(cols: usize) -> usize {
    cols.next_multiple_of(4)
}

/// Host copy of a tensor.
#[derive(Clone, Debug)]
pub enum Host {
    /// Rows padded to [`stride`].
    F32(Vec<f32>),
    /// Rows padded to [`stride`].
    F16(Vec<f16>),
    /// Rows not padded.
    U32(Vec<u32>),
    /// Keys or values in blocks.
    Blocks(Blocks),
    /// Where the checkpoint holds them, or in memory.
    Weight(WeightStack),
}

/// Rows of weights: what the checkpoint holds, and the format in which they are used.
#[derive(Clone, Debug)]
pub struct WeightRows {
    /// How a row is used.
    pub format: &'static Format,
    /// Number of rows (outputs of a linear).
    pub rows: usize,
    /// Weights in a row (inputs of a linear).
    pub cols: usize,
    /// The rows in the format of the checkpoint, which may be another.
    pub bytes: Bytes,
    stored: &'static Format,
}

impl WeightRows {
    /// `bytes` are `rows` rows of `cols` weights.
    pub fn new(format: &'static Format, rows: usize, cols: usize, bytes: Bytes) -> Self {
        Self { format, rows, cols, bytes, stored: format }
    }

    /// The same weights to be rounded to `format`, which must have an encoder, when they are used.
    pub fn quantized(self, format: &'static Format) -> Self {
        Self { format, ..self }
    }

    /// Rows `range` in `format`: the checkpoint's bytes where they are that, else encoded now.
    pub fn blocks(&self, range: Range<usize>) -> Cow<'_, [u8]> {
        let stored = &self.bytes[range.start * self.row_bytes()..range.end * self.row_bytes()];
        if self.format == self.stored {
            return Cow::Borrowed(stored);
        }
        let encode = self.format.encode.expect("a format to quantise to has an encoder");
        let row_bytes = self.cols / self.format.block_len * self.format.block_bytes;
        let mut blocks = vec![0; range.len() * row_bytes];
        let rows = stored.par_chunks_exact(self.row_bytes()).zip(blocks.par_chunks_exact_mut(row_bytes));
        rows.for_each_init(
            || vec![0.0; self.cols],
            |weights, (from, to)| {
                (self.stored.decode)(from, weights);
                encode(weights, to);
            },
        );
        Cow::Owned(blocks)
    }

    /// The weights in `format`, in memory where the checkpoint holds them in another.
    pub fn in_format(&self) -> Self {
        match self.blocks(0..self.rows) {
            Cow::Borrowed(_) => self.clone(),
            Cow::Owned(blocks) => Self::new(self.format, self.rows, self.cols, Bytes::new(blocks)),
        }
    }

    /// Decodes row `i` into `weights` (`cols` long).
    pub fn decode_row(&self, i: usize, weights: &mut [f32]) {
        (self.format.decode)(&self.blocks(i..i + 1), weights);
    }

    /// Of the checkpoint.
    fn row_bytes(&self) -> usize {
        self.bytes.len() / self.rows
    }
}

impl Host {
    /// Panics unless the tensor is f32.
    pub fn f32(&self) -> &[f32] {
        let Host::F32(v) = self else { panic!("tensor is not f32") };
        v
    }

    /// Panics unless the tensor is f32.
    pub fn f32_mut(&mut self) -> &mut [f32] {
        let Host::F32(v) = self else { panic!("tensor is not f32") };
        v
    }

    /// Panics unless the tensor is u32.
    pub fn u32(&self) -> &[u32] {
        let Host::U32(v) = self else { panic!("tensor is not u32") };
        v
    }

    /// Panics unless the tensor is u32.
    pub fn u32_mut(&mut self) -> &mut [u32] {
        let Host::U32(v) = self else { panic!("tensor is not u32") };
        v
    }

    /// Panics unless the tensor holds weights.
    pub fn weight(&self) -> &WeightStack {
        let Host::Weight(w) = self else { panic!("tensor is not a weight") };
        w
    }

    /// Element `i` of a KV tensor.
    pub fn kv(&self, i: usize) -> f32 {
        match self {
            Host::F32(v) => v[i],
            Host::F16(v) => v[i].to_f32(),
            Host::Blocks(blocks) => blocks.get(i / blocks.cols(), i % blocks.cols()),
            _ => panic!("tensor is not KV"),
        }
    }

    /// The row of a KV tensor that begins with element `first`.
    pub fn kv_row(&self, first: usize, row: &mut [f32]) {
        match self {
            Host::Blocks(blocks) => blocks.row(first / blocks.cols(), row),
            _ => row.iter_mut().enumerate().for_each(|(i, x)| *x = self.kv(first + i)),
        }
    }

    /// Stores the row of a KV tensor that begins with element `first`, rounded as its elements are.
    pub fn set_kv_row(&mut self, first: usize, row: &[f32]) {
        match self {
            Host::Blocks(blocks) => blocks.set_row(first / blocks.cols(), row),
            _ => row.iter().enumerate().for_each(|(i, x)| self.set_kv(first + i, *x)),
        }
    }

    /// The bytes of a tensor that steps write, as the device has them.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Host::F32(v) => bytemuck::cast_slice(v),
            Host::F16(v) => bytemuck::cast_slice(v),
            Host::U32(v) => bytemuck::cast_slice(v),
            Host::Blocks(blocks) => bytemuck::cast_slice(blocks.words()),
            Host::Weight(_) => panic!("tensor is a weight"),
        }
    }

    /// As [`bytes`](Self::bytes), to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Host::F32(v) => bytemuck::cast_slice_mut(v),
            Host::F16(v) => bytemuck::cast_slice_mut(v),
            Host::U32(v) => bytemuck::cast_slice_mut(v),
            Host::Blocks(blocks) => bytemuck::cast_slice_mut(blocks.words_mut()),
            Host::Weight(_) => panic!("tensor is a weight"),
        }
    }

    /// Stores element `i` of a KV tensor of f32 or f16, which is rounded and clamped to ±65504.
    pub fn set_kv(&mut self, i: usize, x: f32) {
        match self {
            Host::F32(v) => v[i] = x,
            Host::F16(v) => v[i] = f16::from_f32(x.clamp(-65504.0, 65504.0)),
            _ => panic!("tensor is not KV of single elements"),
        }
    }
}

/// A matrix of weights, in as many tensors as the device's binding limit makes of it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Weight {
    pub(crate) parts: Vec<Tensor>,
    /// Rows of all parts together, less the zeros behind pairs.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
}

/// Sizes that all tensors of a loaded model are allocated for.
#[derive(Clone, Copy, Debug)]
pub struct Capacity {
    /// Tokens of one step.
    pub tokens: usize,
    /// Rows of logits of one step.
    pub outputs: usize,
    /// Sequences of one step.
    pub sequences: usize,
    /// Positions of one sequence.
    pub context: usize,
    /// KV pages of all sequences.
    pub pages: usize,
    /// How KV pages are stored: one of [`Element::KV`].
    pub kv: Element,
    /// Bytes one binding may have.
    pub binding: usize,
}

impl Capacity {
    /// Positions of a page.
    pub const PAGE: usize = kv::PAGE;

    /// Most of `count` that a step may have.
    pub fn of(&self, count: Count) -> usize {
        match count {
            Count::Tokens => self.tokens,
            Count::Outputs => self.outputs,
            Count::Sequences => self.sequences,
            // A tile holds at least one token.
            Count::Tiles => self.tokens,
            Count::Pages => self.context.div_ceil(Self::PAGE),
            Count::Rows | Count::Segment | Count::Segments => self.context,
            Count::Penalized | Count::Logprobs => self.outputs,
        }
    }
}

/// Shape of the register tile that one workgroup of a linear holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Tile {
    /// Invocations of a workgroup, a multiple of 8.
    pub lanes: usize,
    /// Weight rows of one invocation, an even number.
    pub rows: usize,
    /// Tokens of one invocation in prefill; in decode it is one.
    pub tokens: usize,
    /// Whether invocations of a subgroup of 8 or more share their loads of x.
    pub broadcast: bool,
    /// Whether norms are folded into the linears that follow in decode.
    pub folds: bool,
    /// In which numbers products are formed.
    pub maths: Maths,
    /// What [`Maths::Coopmat`] multiplies by.
    pub matrices: Matrices,
}

/// In which numbers a linear forms its products. Their sums are f32.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Maths {
    /// f32.
    #[default]
    F32,
    /// Weights and inputs rounded to f16, products summed in f16 by fours.
    F16,
    /// Inputs rounded to int8 with a scale for each 32, as llama.cpp's Q8_1; products with quants of int8 or less. Weights of formats
    /// that have no such quants are multiplied in f32.
    Dot8,
    /// In prefill by cooperative matrices, weights and inputs rounded to what those hold: see [`Matrices`]. In decode, and for logits,
    /// f32, so that the bits of a token are not the same in a prompt as alone.
    Coopmat,
}

/// The cooperative matrices by which the subgroups of a device multiply.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Matrices {
    /// The best of those that it has.
    pub shape: MatrixShape,
    /// Invocations of a subgroup, at most: a power of 2, up to 64.
    pub subgroup: usize,
}

impl Matrices {
    /// What most GPUs have.
    pub const COMMON: Self = Self { shape: MatrixShape::F16x16, subgroup: 32 };
}

/// Rows and columns of a cooperative matrix, and the numbers that it multiplies. Sums are f32.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MatrixShape {
    /// 16 × 16 of f16.
    F16x16,
    /// 8 × 8 of f16.
    F16x8,
    /// 8 × 8 of f32.
    F32x8,
}

impl std::fmt::Display for MatrixShape {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            MatrixShape::F16x16 => "16 × 16 of f16",
            MatrixShape::F16x8 => "8 × 8 of f16",
            MatrixShape::F32x8 => "8 × 8 of f32",
        })
    }
}

impl Tile {
    /// For drivers that run shaders on the CPU: a workgroup is one SIMD vector, and reuse in registers is everything. Each
    /// invocation loads all of x, so that norms are cheaper apart.
    pub const SOFTWARE: Tile = Tile {
        lanes: 8,
        rows: 8,
        tokens: 4,
        broadcast: false,
        folds: false,
        maths: Maths::F32,
        matrices: Matrices::COMMON,
    };
    /// For those with subgroups of 8 or more.
    pub const SUBGROUPS: Tile = Tile { rows: 4, broadcast: true, folds: true, ..Tile::SOFTWARE };
    /// For GPUs: enough invocations to fill them.
    pub const HARDWARE: Tile = Tile { lanes: 64, rows: 2, folds: true, ..Tile::SOFTWARE };
}

impl std::fmt::Display for Tile {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let subgroups = if self.broadcast { ", subgroups" } else { "" };
        write!(f, "linears of {} lanes × {} rows{subgroups}", self.lanes, self.rows)
    }
}

/// All tensors of a loaded model.
#[derive(Debug)]
pub struct Memory {
    pub(crate) tensors: Vec<TensorDesc>,
    /// How linears are recorded.
    pub tile: Tile,
    /// What tensors are sized for.
    pub capacity: Capacity,
}

impl Memory {
    /// Memory without tensors.
    pub fn new(capacity: Capacity) -> Self {
        Self { tensors: Vec::new(), tile: Tile::SOFTWARE, capacity }
    }

    /// A tensor that steps write.
    pub fn tensor(&mut self, name: impl Into<String>, element: Element, rows: usize, cols: usize) -> Tensor {
        self.push(TensorDesc { name: name.into(), element, rows, cols, bound: None, is_table: false, init: None })
    }

    /// An f32 tensor with a row for each token, output or sequence of a step.
    pub fn activation(&mut self, name: &str, bound: Count, cols: usize) -> Tensor {
        self.activation_and(name, bound, 0, cols)
    }

    /// As [`activation`](Self::activation), and behind those `more` rows.
    pub fn activation_and(&mut self, name: &str, bound: Count, more: usize, cols: usize) -> Tensor {
        let rows = self.capacity.of(bound) + more;
        self.push(TensorDesc {
            name: name.into(),
            element: Element::F32,
            rows,
            cols,
            bound: Some(bound),
            is_table: false,
            init: None,
        })
    }

    /// A u32 input or result with a row for each token, output or sequence of a step.
    pub fn input(&mut self, name: &str, bound: Count, cols: usize) -> Tensor {
        let rows = self.capacity.of(bound);
        self.push(TensorDesc {
            name: name.into(),
            element: Element::U32,
            rows,
            cols,
            bound: Some(bound),
            is_table: false,
            init: None,
        })
    }

    /// Four words, for an [`Access::Uniform`](crate::kernel::Access::Uniform).
    pub fn words(&mut self, name: &str, words: [u32; 4]) -> Tensor {
        self.push(TensorDesc {
            name: name.into(),
            element: Element::U32,
            rows: 1,
            cols: 4,
            bound: None,
            is_table: true,
            init: Some(Host::U32(words.to_vec())),
        })
    }

    /// A table of f32 known at load: `values` are `rows × cols` without padding.
    pub fn table(&mut self, name: impl Into<String>, cols: usize, values: &[f32]) -> Tensor {
        let mut padded = vec![0.0; values.len() / cols * stride(cols)];
        for (row, to) in values.chunks(cols).zip(padded.chunks_mut(stride(cols))) {
            to[..cols].copy_from_slice(row);
        }
        let (rows, init) = (values.len() / cols, Some(Host::F32(padded)));
        self.push(TensorDesc {
            name: name.into(),
            element: Element::F32,
            rows,
            cols,
            bound: None,
            is_table: true,
            init,
        })
    }

    /// A weight of the checkpoint, split by slabs of rows where it exceeds the binding limit.
    pub fn weight(&mut self, name: &str, w: WeightRows) -> Weight {
        self.stack(name, vec![w])
    }

    /// Rows of `tensors`, which have one format and length, one after the other.
    pub fn stack(&mut self, name: &str, tensors: Vec<WeightRows>) -> Weight {
        self.split(name, tensors.into(), SLAB)
    }

    /// Rows of `tensors`, counted through all of them, that the kernels take two by two: see [`WeightStack::pairs`]. The zeros
    /// behind the last pair are not among the weight's rows.
    pub fn pairs(&mut self, name: &str, tensors: Vec<WeightRows>, pairs: &[[usize; 2]]) -> Weight {
        let weight = self.split(name, WeightStack::pairs(tensors, pairs), 2 * SLAB);
        Weight { rows: 2 * pairs.len(), ..weight }
    }

    /// Parts of whole `units` of rows within the binding limit.
    fn split(&mut self, name: &str, w: WeightStack, unit: usize) -> Weight {
        let (format, rows, cols) = (w.format(), w.rows(), w.cols());
        let fit = (self.capacity.binding / format.gpu_bytes(unit, cols)).max(1) * unit;
        let parts = (0..rows).step_by(fit).map(|first| {
            let range = first..rows.min(first + fit);
            let name =
                if range.len() == rows { name.into() } else { format!("{name}[{}..{}]", range.start, range.end) };
            self.push(TensorDesc {
                name,
                element: Element::Weight(format),
                rows: range.len(),
                cols,
                bound: None,
                is_table: true,
                init: Some(Host::Weight(w.slice(range))),
            })
        });
        Weight { parts: parts.collect(), rows, cols }
    }

    /// Drops the values known at load, once they are on a device.
    pub(crate) fn forget_values(&mut self) {
        for t in &mut self.tensors {
            t.init = None;
        }
    }

    fn push(&mut self, desc: TensorDesc) -> Tensor {
        self.tensors.push(desc);
        Tensor(self.tensors.len() - 1)
    }

    /// What `t` is.
    pub fn desc(&self, t: Tensor) -> &TensorDesc {
        &self.tensors[t.0]
    }

    /// The handle of every tensor, in the order of declaration.
    pub(crate) fn handles(&self) -> impl Iterator<Item = Tensor> + use<> {
        (0..self.tensors.len()).map(Tensor)
    }

    /// Every tensor, in the order of declaration.
    pub fn tensors(&self) -> &[TensorDesc] {
        &self.tensors
    }
}

/// Bytes that keep alive what they are part of, such as a mapped file.
#[derive(Clone)]
pub struct Bytes {
    owner: Arc<Owner>,
    range: Range<usize>,
}

enum Owner {
    Memory(Box<dyn AsRef<[u8]> + Send + Sync>),
    Mapped(Mmap),
}

impl Owner {
    fn bytes(&self) -> &[u8] {
        match self {
            Owner::Memory(owner) => (**owner).as_ref(),
            Owner::Mapped(map) => map,
        }
    }
}

impl Bytes {
    /// All bytes of `owner`.
    pub fn new(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::of(Owner::Memory(Box::new(owner)))
    }

    /// All bytes of a mapped file.
    pub fn mapped(map: Mmap) -> Self {
        Self::of(Owner::Mapped(map))
    }

    fn of(owner: Owner) -> Self {
        let range = 0..owner.bytes().len();
        Self { owner: Arc::new(owner), range }
    }

    /// The part `range` of these bytes; panics when it lies outside.
    pub fn slice(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len(), "{range:?} lies outside {} bytes", self.len());
        let start = self.range.start;
        Self { owner: self.owner.clone(), range: start + range.start..start + range.end }
    }

    /// Tells the operating system that this part of a mapped file will not be read again soon, to free its memory.
    ///
    /// Reading it afterwards is correct and reads the file again. Does nothing on systems other than Unix.
    pub fn release(&self) {
        #[cfg(unix)]
        if let Owner::Mapped(map) = &*self.owner {
            // A multiple of every page size in use, so no neighbour's page is dropped.
            const STEP: usize = 64 << 10;
            let (start, end) = (self.range.start.next_multiple_of(STEP), self.range.end / STEP * STEP);
            if start < end {
                // SAFETY: the mapping is shared and read-only, so dropped pages come back with the file's bytes.
                let advised =
                    unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
                // A refusal costs memory, nothing else.
                let _ = advised;
            }
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.owner.bytes()[self.range.clone()]
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}
