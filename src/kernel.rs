//! What a kernel is: WGSL text, its bindings, and the CPU function that defines its result.

use std::fmt::Write;
use std::iter::Sum;
use std::ops::Add;

use crate::memory::{Host, TensorDesc};

/// How a kernel uses the buffer at one `@binding`. Binding `i` is entry `i` of [`Kernel::bindings`].
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Access {
    /// The per-step uniform, shared by all kernels of a program.
    Step,
    /// A uniform of four words that is known at load.
    Uniform,
    /// Read only.
    Read,
    /// Written, perhaps read too; no other binding of the dispatch may be the same tensor.
    ReadWrite,
}

/// One entry point `main` in `shaders/{name}.wgsl`.
#[derive(Debug)]
pub struct Kernel {
    /// Name of the shader file and of the recording function.
    pub name: &'static str,
    /// The shader file.
    pub source: &'static str,
    /// Name and access of each binding, in order.
    pub bindings: &'static [(&'static str, Access)],
    /// The definition of the result, computed in f64. Not a port of the shader. Takes the tensors in the order of the
    /// bindings, without the step.
    pub reference: fn(&Spec, &Step, &mut [Host]),
    /// What a dispatch of at least one workgroup moves and computes. Takes what is known of the tensors, in the same order.
    pub cost: fn(&Spec, &Step, &[&TensorDesc]) -> Cost,
}

/// What must be moved and computed at least: every byte counts once, however often a kernel loads it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cost {
    /// Bytes of weights as they lie in GPU memory, of activations, KV and inputs.
    pub read: u64,
    /// Bytes of results.
    pub written: u64,
    /// Operations on f32: a multiply-add is 2; exp, a division or a comparison is 1.
    pub flops: u64,
}

impl Cost {
    pub(crate) fn new(read: usize, written: usize, flops: usize) -> Self {
        Self { read: read as u64, written: written as u64, flops: flops as u64 }
    }

    /// Bytes read and written.
    pub fn bytes(&self) -> u64 {
        self.read + self.written
    }
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { read: self.read + other.read, written: self.written + other.written, flops: self.flops + other.flops }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), Add::add)
    }
}

/// A value fixed at pipeline creation.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Const {
    /// `const NAME: u32`.
    U32(u32),
    /// `const NAME: f32`; the bits, so that a [`Spec`] can be a map key.
    F32(u32),
}

/// Everything that selects one pipeline of a kernel. Equal specs share a pipeline.
#[derive(Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct Spec {
    enables: Vec<&'static str>,
    includes: Vec<&'static str>,
    constants: Vec<(&'static str, Const)>,
}

impl Spec {
    /// With constant `name` of type u32.
    pub fn u32(mut self, name: &'static str, value: usize) -> Self {
        self.constants.push((name, Const::U32(u32::try_from(value).expect("constant fits u32"))));
        self
    }

    /// With constant `name` of type f32.
    pub fn f32(mut self, name: &'static str, value: f32) -> Self {
        self.constants.push((name, Const::F32(value.to_bits())));
        self
    }

    /// With a WGSL extension enabled.
    pub fn enable(mut self, extension: &'static str) -> Self {
        self.enables.push(extension);
        self
    }

    /// With a shared file: the one chosen implementation of its functions.
    pub fn include(mut self, text: &'static str) -> Self {
        self.includes.push(text);
        self
    }

    /// Whether this shared file is the chosen one.
    pub fn includes(&self, text: &str) -> bool {
        self.includes.contains(&text)
    }

    /// The constants, in the order they were given.
    pub fn constants(&self) -> &[(&'static str, Const)] {
        &self.constants
    }

    /// Constant `name`; panics unless it is a u32 of this spec.
    pub fn get_u32(&self, name: &str) -> usize {
        match self.get(name) {
            Some(Const::U32(v)) => v as usize,
            _ => panic!("spec has no u32 `{name}`"),
        }
    }

    /// Constant `name`; panics unless it is an f32 of this spec.
    pub fn get_f32(&self, name: &str) -> f64 {
        match self.get(name) {
            Some(Const::F32(bits)) => f32::from_bits(bits) as f64,
            _ => panic!("spec has no f32 `{name}`"),
        }
    }

    fn get(&self, name: &str) -> Option<Const> {
        self.constants.iter().find(|(n, _)| *n == name).map(|(_, c)| *c)
    }
}

/// Values that change on every step. Layout equals `Step` in `shaders/common/step.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, bytemuck::Pod, bytemuck::Zeroable)]
pub struct Step {
    /// Tokens in this step.
    pub n_tokens: u32,
    /// Rows of logits wanted.
    pub n_outputs: u32,
    /// Sequences in this step.
    pub n_sequences: u32,
    /// Entries of the tile list that attention_prefill works through.
    pub n_tiles: u32,
    /// Most pages that any sequence of this step reads.
    pub max_pages: u32,
    /// Rows of the tree that is built.
    pub rows: u32,
    /// Rows of a segment of it, or nodes of the depth that is built.
    pub segment: u32,
    /// 0, which no compiler knows.
    pub zero: u32,
    /// Rows of logits that are adjusted before tokens are drawn from them.
    pub n_penalized: u32,
    /// Rows of logits of which logprobs may be wanted.
    pub n_logprobs: u32,
    /// Where the ids go that this step draws.
    pub first_id: u32,
}

/// A number of the step that sizes a dispatch or bounds the rows of a tensor.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Count {
    /// [`Step::n_tokens`].
    Tokens,
    /// [`Step::n_outputs`].
    Outputs,
    /// [`Step::n_sequences`].
    Sequences,
    /// [`Step::n_tiles`].
    Tiles,
    /// [`Step::max_pages`].
    Pages,
    /// [`Step::rows`](field@Step::rows).
    Rows,
    /// [`Step::segment`].
    Segment,
    /// [`Step::rows`](field@Step::rows) / [`Step::segment`].
    Segments,
    /// [`Step::n_penalized`].
    Penalized,
    /// [`Step::n_logprobs`].
    Logprobs,
}

impl Step {
    /// The value of `count`.
    pub fn count(&self, count: Count) -> usize {
        let value = match count {
            Count::Tokens => self.n_tokens,
            Count::Outputs => self.n_outputs,
            Count::Sequences => self.n_sequences,
            Count::Tiles => self.n_tiles,
            Count::Pages => self.max_pages,
            Count::Rows => self.rows,
            Count::Segment => self.segment,
            Count::Segments => self.rows / self.segment.max(1),
            Count::Penalized => self.n_penalized,
            Count::Logprobs => self.n_logprobs,
        };
        value as usize
    }

    /// Rows in use where constant `OUTPUTS` of the spec says whether they are outputs or tokens.
    pub(crate) fn rows(&self, spec: &Spec) -> usize {
        self.count(if spec.get_u32("OUTPUTS") == 1 { Count::Outputs } else { Count::Tokens })
    }
}

/// Workgroups along one axis of a dispatch.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Extent {
    /// The same on every step.
    Fixed(usize),
    /// One for every `.1` of a count of the step.
    Per(Count, usize),
}

impl Extent {
    /// Workgroups in `step`.
    pub fn groups(self, step: &Step) -> u32 {
        let n = match self {
            Extent::Fixed(n) => n,
            Extent::Per(count, each) => step.count(count).div_ceil(each),
        };
        u32::try_from(n).expect("workgroups fit u32")
    }
}

impl Kernel {
    /// The complete WGSL module for `spec`: what it enables, and the files joined (declarations may come in any order), each
    /// `override NAME: TYPE;` made a `const` of the spec's value, so that it may also size a per-invocation array.
    pub fn wgsl(&self, spec: &Spec) -> String {
        let mut text = format!("// {}\n", self.name);
        for extension in &spec.enables {
            writeln!(text, "enable {extension};").expect("writing to a string");
        }
        let step = self.bindings.iter().any(|(_, a)| *a == Access::Step).then_some(STEP);
        let files = step.into_iter().chain(spec.includes.iter().copied()).chain([self.source]);
        let mut unused: Vec<_> = spec.constants.iter().map(|(name, _)| *name).collect();
        for line in files.flat_map(str::lines) {
            let Some(rest) = line.strip_prefix("override ") else {
                text.push_str(line);
                text.push('\n');
                continue;
            };
            let name = rest.split(':').next().unwrap_or_default();
            let value = spec.get(name).unwrap_or_else(|| panic!("{}: no value for `{line}`", self.name));
            unused.retain(|u| *u != name);
            match value {
                Const::U32(v) => writeln!(text, "const {name}: u32 = {v}u;"),
                Const::F32(bits) => writeln!(text, "const {name}: f32 = {:?}f;", f32::from_bits(bits)),
            }
            .expect("writing to a string");
        }
        assert!(unused.is_empty(), "{}: constants {unused:?} are in no file", self.name);
        text
    }
}

const STEP: &str = include_str!("../shaders/common/step.wgsl");
