//! Both interpreters side by side: the first dispatch whose result on the GPU is not the reference's.

use std::collections::BTreeMap;

use super::{Backend, Device, Engine, EngineOptions, Inputs, Recorded, expect_fits};
use crate::error::{Error, Result};
use crate::gpu::{Buffers, Gpu};
use crate::memory::{Element, Host, Tensor, TensorDesc, stride};
use crate::program::{Mode, Program};
use crate::session::Session;
use crate::weights::Weights;

/// A model on the GPU and on the CPU. Every dispatch starts from the same inputs on both: what the reference has computed is
/// copied to the GPU after each comparison.
pub struct Diverge {
    engine: Engine,
    gpu: Gpu,
    buffers: Buffers,
}

/// An element that differs.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The program that ran.
    pub mode: Mode,
    /// Index in that program.
    pub dispatch: usize,
    /// What ran.
    pub kernel: &'static str,
    /// The tensor it wrote.
    pub tensor: String,
    /// Where the error is largest: row and column of the tensor.
    pub element: (usize, usize),
    /// What the GPU has there.
    pub gpu: f64,
    /// What the reference has there.
    pub reference: f64,
    /// |gpu - reference| / (1 + |reference|); infinite where only one of them is a number.
    pub error: f64,
}

/// Result of a comparison.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Dispatches compared.
    pub dispatches: usize,
    /// The largest error of each kernel.
    pub worst: BTreeMap<&'static str, Difference>,
    /// The first dispatch beyond the tolerance; none of the later ones ran.
    pub first: Option<Difference>,
}

impl Diverge {
    /// Loads the model twice, with the programs of the GPU that `options` names.
    pub fn load(weights: &Weights, options: &EngineOptions) -> Result<Self> {
        let Backend::Gpu(device) = &options.backend else {
            return Err(Error::request("device", "a GPU to compare with the CPU", "the CPU"));
        };
        let gpu = Gpu::new(device)?;
        expect_fits(weights, options, Some(gpu.caps()))?;
        let engine = Engine::load_on_cpu(Recorded::new(weights, options, Some(gpu.caps()))?)?;
        let buffers = gpu.allocate(&engine.memory, |_, _| {})?;
        Ok(Self { engine, gpu, buffers })
    }

    /// The GPU.
    pub fn device(&self) -> String {
        self.gpu.caps().to_string()
    }

    /// The dispatches of a program.
    pub fn program(&self, mode: Mode) -> &Program {
        &self.engine.programs[mode]
    }

    /// The program, to plant a fault in it: only the GPU runs the shaders.
    #[doc(hidden)]
    pub fn program_mut(&mut self, mode: Mode) -> &mut Program {
        &mut self.engine.programs[mode]
    }

    /// Overwrites the start of a tensor on the GPU only, to plant a fault.
    #[doc(hidden)]
    pub fn corrupt(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let i = self.engine.memory.tensors.iter().position(|t| t.name == name);
        let i = i.ok_or_else(|| Error::request("tensor", "one of the model's", name))?;
        self.gpu.write(&self.buffers, Tensor(i), bytes)
    }

    /// Runs `tokens`, all but the last as a prompt and that one as a decode step, then `more` tokens that the reference draws.
    /// Ends at the first error beyond `tolerance`. Calls `progress` with dispatches done and in all.
    pub fn run(
        &mut self,
        tokens: &[u32],
        more: usize,
        tolerance: f64,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Report> {
        let batch = self.engine.memory.capacity.tokens;
        let prompt = tokens.len().saturating_sub(1);
        let steps = (0..prompt).step_by(batch).map(|at| (prompt - at).min(batch)).chain((0..=more).map(|_| 1));
        let mode = |n: usize| if n == 1 { Mode::Decode } else { Mode::Prefill };
        let total = steps.map(|n| self.program(mode(n)).dispatches.len()).sum();
        let mut session = self.engine.session();
        let mut report = Report::default();
        session.push(&tokens[..prompt]);
        while !session.pending().is_empty() && report.first.is_none() {
            let n = session.pending().len().min(batch);
            self.step(&mut session, n, tolerance, &mut report, &mut |done| progress(done, total))?;
        }
        session.push(&tokens[prompt..]);
        for _ in 0..=more {
            if session.pending().is_empty() || report.first.is_some() {
                break;
            }
            let id = self.step(&mut session, 1, tolerance, &mut report, &mut |done| progress(done, total))?;
            session.push(&[id]);
        }
        Ok(report)
    }

    /// Compares one step and returns the token that the reference draws.
    fn step(
        &mut self,
        session: &mut Session,
        n: usize,
        tolerance: f64,
        report: &mut Report,
        progress: &mut dyn FnMut(usize),
    ) -> Result<u32> {
        let engine = &mut self.engine;
        session.table.append(n)?;
        let mut inputs = Inputs::default();
        inputs.add(session, session.table.len() - n, 1, None);
        engine.write(&inputs)?;
        let (step, mode) = (inputs.step(), inputs.mode());
        let program = &engine.programs[mode];
        let Device::Cpu { host } = &mut engine.device else { unreachable!("loaded on the CPU") };
        let (io, a) = (&engine.io, &engine.io.attention);
        for t in [a.tokens, a.sequences, a.tiles, a.pages, io.outputs, io.sampling] {
            self.gpu.write_host(&self.buffers, t, &host[t.0])?;
        }
        let singles: Vec<_> = program.dispatches.iter().map(|d| Program { dispatches: vec![d.clone()] }).collect();
        let prepared = self.gpu.prepare(&self.buffers, &singles.iter().collect::<Vec<_>>())?;
        for (i, (d, mut prepared)) in program.dispatches.iter().zip(prepared).enumerate() {
            self.gpu.run(&self.buffers, &mut prepared, &step)?;
            d.run_reference(&step, host);
            for t in d.written() {
                let desc = engine.memory.desc(t);
                let rows = desc.bound.map_or(desc.rows, |count| step.count(count));
                let bytes = (desc.bytes() / desc.rows * rows).next_multiple_of(4);
                let gpu = self.gpu.read_at(&self.buffers, t, 0, bytes)?;
                let (at, gpu, reference, error) = worst(desc, rows, &gpu, &host[t.0]);
                let (kernel, tensor) = (d.kernel.name, desc.name.clone());
                let element = (at / desc.cols, at % desc.cols);
                let found = Difference { mode, dispatch: i, kernel, tensor, element, gpu, reference, error };
                // Half a unit of what is stored may become a whole one. A block's unit is a part of its largest element.
                let stored = match desc.element {
                    Element::F16 => 1.0 / 1024.0,
                    Element::Q8_0 => 1.0 / 126.0,
                    Element::Q4_0 => 1.0 / 7.0,
                    _ => 0.0,
                };
                if found.error > tolerance + stored && report.first.is_none() {
                    report.first = Some(found.clone());
                }
                let most = report.worst.entry(d.kernel.name).or_insert_with(|| found.clone());
                if found.error > most.error {
                    *most = found;
                }
                self.gpu.write_host(&self.buffers, t, &host[t.0])?;
            }
            report.dispatches += 1;
            progress(report.dispatches);
            if report.first.is_some() {
                break;
            }
        }
        Ok(host[engine.io.ids.0].u32()[0])
    }
}

/// The element of the first `rows` rows with the largest error: its index without padding, both values, the error.
fn worst(desc: &TensorDesc, rows: usize, gpu: &[u8], reference: &Host) -> (usize, f64, f64, f64) {
    let cols = desc.cols;
    let stride = if desc.element == Element::U32 { cols } else { stride(cols) };
    let gpu = desc.host_of(gpu);
    let value = |host: &Host, i: usize| match host {
        Host::U32(v) => f64::from(v[i]),
        other => f64::from(other.kv(i)),
    };
    let mut most = (0, 0.0, 0.0, -1.0);
    for at in 0..rows * cols {
        let i = at / cols * stride + at % cols;
        let [gpu, found] = [&gpu, reference].map(|host| value(host, i));
        let magnitude = match reference {
            Host::Blocks(blocks) => f64::from(blocks.largest(at / cols, at % cols)),
            _ => found.abs(),
        };
        let error = match (gpu - found).abs() / (1.0 + magnitude) {
            _ if gpu == found || (gpu.is_nan() && found.is_nan()) => 0.0,
            error if error.is_nan() => f64::INFINITY,
            error => error,
        };
        if error > most.3 {
            most = (at, gpu, found, error);
        }
    }
    most
}

impl std::fmt::Display for Difference {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self { mode, dispatch, kernel, tensor, element: (row, col), gpu, reference, error } = self;
        write!(
            f,
            "dispatch {dispatch} of {mode:?}, {kernel}: {tensor}[{row}, {col}] is {gpu} on the GPU, {reference} by the \
             reference, error {error:.2e}"
        )
    }
}
