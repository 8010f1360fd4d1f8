//! A recorded list of dispatches, the recorder that models write to, and the interpreter that runs the references.

use std::ops::{Index, IndexMut};

use crate::format::Format;
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Capacity, Element, Host, Memory, Tensor, TensorDesc, Tile};

/// One kernel with its pipeline constants, tensors (in the order of the bindings, without the step) and workgroups.
#[derive(Clone, Debug)]
pub struct Dispatch {
    /// What runs.
    pub kernel: &'static Kernel,
    /// Selects the pipeline.
    pub spec: Spec,
    /// One for each binding but the step.
    pub tensors: Vec<Tensor>,
    /// Workgroups along x, y, z.
    pub groups: [Extent; 3],
}

/// A forward pass, recorded once and replayed on every step.
#[derive(Clone, Debug, Default)]
pub struct Program {
    /// In order; each may read what earlier ones wrote.
    pub dispatches: Vec<Dispatch>,
}

impl Dispatch {
    /// The tensors that this dispatch writes.
    pub fn written(&self) -> impl Iterator<Item = Tensor> {
        self.bound().filter(|(_, a, _)| *a == Access::ReadWrite).map(|(.., t)| t)
    }

    /// The tensor at the binding of this name.
    pub(crate) fn tensor(&self, name: &str) -> Option<Tensor> {
        self.bound().find(|(n, ..)| *n == name).map(|(.., t)| t)
    }

    /// Names, accesses and tensors of the bindings.
    fn bound(&self) -> impl Iterator<Item = (&'static str, Access, Tensor)> {
        let bindings = self.kernel.bindings.iter().filter(|(_, a)| *a != Access::Step);
        bindings.zip(&self.tensors).map(|((name, a), t)| (*name, *a, *t))
    }

    /// The kernel and, where it reads weights, their format and shape.
    pub fn label(&self, memory: &Memory) -> String {
        let weight = self.tensors.iter().find_map(|t| match memory.desc(*t) {
            TensorDesc { element: Element::Weight(format), rows, cols, .. } => Some((format.name, rows, cols)),
            _ => None,
        });
        match weight {
            Some((format, rows, cols)) => format!("{} {format} [{rows}, {cols}]", self.kernel.name),
            None => self.kernel.name.into(),
        }
    }

    /// Whether it has any workgroup in `step`.
    pub fn runs(&self, step: &Step) -> bool {
        self.groups.iter().all(|extent| extent.groups(step) > 0)
    }

    /// What it moves and computes in `step` at least; `memory` holds its tensors.
    pub fn cost(&self, step: &Step, memory: &Memory) -> Cost {
        if !self.runs(step) {
            return Cost::default();
        }
        let tensors: Vec<_> = self.tensors.iter().map(|t| memory.desc(*t)).collect();
        (self.kernel.cost)(&self.spec, step, &tensors)
    }

    /// Runs the reference on `host`, which holds all tensors of the memory.
    pub fn run_reference(&self, step: &Step, host: &mut [Host]) {
        let take = |t: &Tensor| std::mem::replace(&mut host[t.0], Host::U32(Vec::new()));
        let mut tensors: Vec<_> = self.tensors.iter().map(take).collect();
        (self.kernel.reference)(&self.spec, step, &mut tensors);
        for (t, value) in self.tensors.iter().zip(tensors) {
            host[t.0] = value;
        }
    }
}

impl Program {
    /// What `record` records over `memory`.
    pub(crate) fn record(memory: &Memory, mode: Mode, record: impl FnOnce(&mut Recorder)) -> Self {
        let mut recorder = Recorder::new(memory, mode);
        record(&mut recorder);
        recorder.finish()
    }

    /// What `step` moves and computes at least.
    pub fn cost(&self, step: &Step, memory: &Memory) -> Cost {
        self.dispatches.iter().map(|d| d.cost(step, memory)).sum()
    }

    /// Runs every dispatch through its reference.
    pub fn run_reference(&self, step: &Step, host: &mut [Host]) {
        for d in &self.dispatches {
            d.run_reference(step, host);
        }
    }
}

/// Which kernels a program is recorded with.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Mode {
    /// Any tokens of any sequences: linears with tiles of four tokens, and attention_prefill.
    Prefill,
    /// One token of each of several sequences: linears with tiles of four tokens, and attention_decode.
    Batch,
    /// One token of one sequence: linears of one token, and attention_decode.
    Decode,
}

impl Mode {
    /// All of them.
    pub const ALL: [Self; 3] = [Mode::Prefill, Mode::Batch, Mode::Decode];
}

/// One of each mode, indexed by it.
#[derive(Clone, Debug)]
pub struct PerMode<T>(pub [T; 3]);

impl<T> Index<Mode> for PerMode<T> {
    type Output = T;

    fn index(&self, mode: Mode) -> &T {
        &self.0[mode as usize]
    }
}

impl<T> IndexMut<Mode> for PerMode<T> {
    fn index_mut(&mut self, mode: Mode) -> &mut T {
        &mut self.0[mode as usize]
    }
}

/// Records a program over `memory`. Each file in `kernels/` adds the method for its kernel.
pub struct Recorder<'a> {
    memory: &'a Memory,
    mode: Mode,
    program: Program,
}

impl<'a> Recorder<'a> {
    /// An empty program.
    pub fn new(memory: &'a Memory, mode: Mode) -> Self {
        Self { memory, mode, program: Program::default() }
    }

    /// The recorded program.
    pub fn finish(self) -> Program {
        self.program
    }

    /// Dispatches of `kernel` so far.
    pub(crate) fn count(&self, kernel: &Kernel) -> usize {
        self.program.dispatches.iter().filter(|d| d.kernel.name == kernel.name).count()
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    pub(crate) fn tile(&self) -> Tile {
        self.memory.tile
    }

    pub(crate) fn capacity(&self) -> &Capacity {
        &self.memory.capacity
    }

    pub(crate) fn desc(&self, t: Tensor) -> &'a TensorDesc {
        self.memory.desc(t)
    }

    /// The count that bounds the rows of an activation.
    pub(crate) fn bound(&self, t: Tensor) -> Count {
        self.desc(t).bound.unwrap_or_else(|| panic!("{} is not an activation", self.desc(t).name))
    }

    /// Panics unless `t` has `cols` columns of `element`; returns its rows.
    pub(crate) fn expect(&self, t: Tensor, element: Element, cols: usize) -> usize {
        let d = self.desc(t);
        assert!(
            d.element == element && d.cols == cols,
            "{}: expected {element:?} [_, {cols}], found {:?} [{}, {}]",
            d.name,
            d.element,
            d.rows,
            d.cols
        );
        d.rows
    }

    /// The format of a part of a weight.
    pub(crate) fn format(&self, t: Tensor) -> &'static Format {
        let Element::Weight(format) = self.desc(t).element else { panic!("{} is not a weight", self.desc(t).name) };
        format
    }

    pub(crate) fn dispatch(&mut self, kernel: &'static Kernel, spec: Spec, tensors: &[Tensor], groups: [Extent; 3]) {
        let d = Dispatch { kernel, spec, tensors: tensors.to_vec(), groups };
        assert_eq!(
            kernel.bindings.iter().filter(|(_, a)| *a != Access::Step).count(),
            tensors.len(),
            "{}",
            kernel.name
        );
        for t in d.written() {
            let bound = tensors.iter().filter(|o| **o == t).count();
            assert_eq!(bound, 1, "{}: {} is written and bound twice", kernel.name, self.desc(t).name);
        }
        self.program.dispatches.push(d);
    }
}
