//! What a step costs, and how long each of its kernels takes.

use std::time::{Duration, Instant};

use super::{Device, Engine, OnGpu};
use crate::error::{Error, Result};
use crate::kernel::{Cost, Step};
use crate::kernels::AttentionDims;
use crate::kv::PAGE;
use crate::program::{Dispatch, Mode, Program};
use crate::session::Session;

/// The dispatches of a step that run one kernel on weights of one shape and format.
#[derive(Clone, Debug)]
pub struct Profiled {
    /// As [`Dispatch::label`] has it.
    pub label: String,
    /// What each of them costs.
    pub costs: Vec<Cost>,
    /// Seconds of all of them together, measured some times over.
    pub seconds: Vec<f64>,
}

impl Engine {
    /// What each dispatch of a step costs that computes `tokens` (at least 1) of one session behind `depth` others, and the
    /// logits of the last where `output`.
    pub fn costs(&self, depth: usize, tokens: usize, output: bool) -> impl Iterator<Item = Cost> {
        let step = Step {
            n_tokens: tokens as u32,
            n_outputs: output.into(),
            n_sequences: 1,
            n_tiles: tokens.div_ceil(AttentionDims::TILE) as u32,
            max_pages: (depth + tokens).div_ceil(PAGE) as u32,
            ..Step::default()
        };
        let program = &self.programs[if tokens == 1 { Mode::Decode } else { Mode::Prefill }];
        program.dispatches.iter().map(move |d| d.cost(&step, &self.memory))
    }

    /// Seconds that the host takes for each of `steps` steps that draw a token for `session`, besides waiting for the device: to
    /// write their inputs, encode and submit them. The session is as before, but for its pages.
    pub fn host_seconds(&mut self, session: &mut Session, steps: usize) -> Result<Vec<f64>> {
        session.reopen();
        let from = session.table.len();
        let timed = (0..steps).map(|_| {
            let began = Instant::now();
            let inputs = self.inputs(&mut [session], &[1], &[1], true)?;
            let launched = self.launch(&inputs)?;
            let seconds = began.elapsed().as_secs_f64();
            self.drawn(launched)?;
            session.forget(from);
            Ok(seconds)
        });
        timed.collect()
    }

    /// Times the kernels of the next step of `session`, which computes its pending tokens, or as many as fit a batch; slowest
    /// first. On a device the dispatches of each kernel run together, for as long as `budget`; on the CPU all run once.
    pub fn profile(&mut self, mut session: Session, budget: Duration) -> Result<Vec<Profiled>> {
        session.reopen();
        let pending = session.pending().len();
        let n = pending.min(self.memory.capacity.tokens);
        if n == 0 {
            return Err(Error::request("pending tokens of a session to profile", "at least 1", 0));
        }
        let inputs = self.inputs(&mut [&mut session], &[n], &[usize::from(n == pending)], true)?;
        // On a device this leaves what the kernels read as a step has it.
        let launched = self.launch(&inputs)?;
        self.drawn(launched)?;
        let step = inputs.step();
        let program = &self.programs[inputs.mode()];
        let mut groups: Vec<(Profiled, Program)> = Vec::new();
        for d in program.dispatches.iter().filter(|d| d.runs(&step)) {
            let label = d.label(&self.memory);
            let i = groups.iter().position(|(group, _)| group.label == label).unwrap_or_else(|| {
                groups.push((Profiled { label, costs: Vec::new(), seconds: Vec::new() }, Program::default()));
                groups.len() - 1
            });
            groups[i].0.costs.push(d.cost(&step, &self.memory));
            groups[i].1.dispatches.push(d.clone());
        }
        match &mut self.device {
            Device::Gpu(on) => {
                let OnGpu { gpu, buffers, .. } = &**on;
                let programs: Vec<_> = groups.iter().map(|(_, program)| program).collect();
                let prepared = gpu.prepare(buffers, &programs)?;
                for ((group, _), mut prepared) in groups.iter_mut().zip(prepared) {
                    group.seconds = gpu.measure(buffers, &mut prepared, &step, budget)?;
                }
            }
            Device::Cpu { host } => {
                let mut time = |d: &Dispatch| {
                    let began = Instant::now();
                    d.run_reference(&step, host);
                    began.elapsed().as_secs_f64()
                };
                for (group, program) in &mut groups {
                    group.seconds = vec![program.dispatches.iter().map(&mut time).sum()];
                }
            }
        }
        let mut profile: Vec<_> = groups.into_iter().map(|(group, _)| group).collect();
        profile.sort_by(|a, b| b.best().total_cmp(&a.best()));
        Ok(profile)
    }
}

impl Profiled {
    fn best(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }
}
