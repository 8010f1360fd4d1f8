//! Decoding without waiting: the ids that a step draws are where the next one reads them, so that several steps are on the
//! device before the first id comes back.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use super::{Device, Engine, Inputs, OnGpu};
use crate::error::{Error, Result};
use crate::gpu::Running;
use crate::program::Mode;
use crate::sampler::NO_TOKEN;
use crate::session::Session;

/// Steps on the device at once.
pub(super) const AHEAD: usize = 4;

/// A step that was begun; its ids are read when it has ended.
pub(crate) enum Launched {
    Gpu(Mode, Running),
    /// Done: so many rows of ids.
    Cpu(usize),
}

impl Engine {
    /// Draws up to `most` tokens for each of `sessions`, of which each has one token pending, or none and is at its end. Calls
    /// `each` with the ids of every step, in the order of the sessions, which have got them then; it may break off. Several
    /// steps are begun before the first is over: what they compute beyond the last id taken is forgotten.
    ///
    /// Ends early when a session's context or the pool of pages is full; when that is so from the start it is an error. On any
    /// error the sessions keep what `each` was called with.
    pub fn decode(
        &mut self,
        sessions: &mut [&mut Session],
        most: usize,
        mut each: impl FnMut(&[u32]) -> ControlFlow<()>,
    ) -> Result<()> {
        for s in sessions.iter_mut() {
            s.reopen();
            if s.pending().len() != 1 {
                return Err(Error::request("pending tokens of a session to decode", "1", s.pending().len()));
            }
        }
        if sessions.is_empty() {
            return Ok(());
        }
        let mut launched = VecDeque::new();
        let result = self.decode_ahead(sessions, most, &mut launched, &mut each);
        // Read-back memory is in use until its step is over.
        for step in launched {
            let drained = self.ids(step);
            if result.is_ok() {
                drained?;
            }
        }
        for s in sessions.iter_mut() {
            s.forget(s.tokens().len() - 1);
        }
        result
    }

    fn decode_ahead(
        &mut self,
        sessions: &mut [&mut Session],
        most: usize,
        launched: &mut VecDeque<Launched>,
        each: &mut impl FnMut(&[u32]) -> ControlFlow<()>,
    ) -> Result<()> {
        let ones = vec![1; sessions.len()];
        let ahead = if matches!(self.device, Device::Gpu(_)) { AHEAD } else { 1 };
        let (mut begun, mut taken) = (0, 0);
        while taken < most {
            while begun < most && launched.len() < ahead {
                match self.begin(sessions, &ones) {
                    Ok(step) => launched.push_back(step),
                    Err(e) if begun == 0 => return Err(e),
                    Err(Error::ContextFull { .. } | Error::OutOfPages { .. }) => break,
                    Err(e) => return Err(e),
                }
                begun += 1;
            }
            let Some(step) = launched.pop_front() else { break };
            let ids = self.ids(step)?;
            check_drawn(&ids)?;
            for (s, id) in sessions.iter_mut().zip(&ids) {
                s.push(&[*id]);
            }
            taken += 1;
            if each(&ids).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// Begins a step of `counts[i]` tokens of session i behind its last computed position, and draws for those that it brings to
    /// their end, or beyond: a token without an id yet is the one drawn by the step begun last. On an error nothing has changed.
    pub(crate) fn begin(&mut self, sessions: &mut [&mut Session], counts: &[usize]) -> Result<Launched> {
        let ends = |(s, n): (&&mut Session, &usize)| usize::from(*n > 0 && s.table.len() + n >= s.tokens().len());
        let outputs: Vec<_> = sessions.iter().zip(counts).map(ends).collect();
        let launched = self.attempt(sessions, |engine, sessions| {
            let inputs = engine.inputs(sessions, counts, &outputs)?;
            engine.launch(&inputs)
        })?;
        let drawing = sessions.iter_mut().zip(outputs).filter(|(_, n)| *n > 0);
        (0..).zip(drawing).for_each(|(row, (s, _))| s.drawn = (self.steps, row));
        Ok(launched)
    }

    /// Whether the next token of a session, which no id is known of, is one that the step begun last draws.
    pub(crate) fn draws_next_of(&self, session: &Session) -> bool {
        session.drawn.0 == self.steps
    }

    /// Begins the step of `inputs`.
    pub(super) fn launch(&mut self, inputs: &Inputs) -> Result<Launched> {
        self.write(inputs)?;
        self.steps += 1;
        let (step, mode) = (inputs.step(), inputs.mode());
        match &mut self.device {
            Device::Gpu(on) => {
                let OnGpu { gpu, buffers, programs, .. } = &mut **on;
                let bytes = 4 * inputs.outputs.len();
                Ok(Launched::Gpu(mode, gpu.launch(buffers, &mut programs[mode], &step, self.io.ids, bytes)?))
            }
            Device::Cpu { host } => {
                // One program for all batches: others round in other places, and bits would depend on the batch.
                self.programs[Mode::Prefill].run_reference(&step, host);
                Ok(Launched::Cpu(inputs.outputs.len()))
            }
        }
    }

    /// The ids that a step has drawn.
    pub(crate) fn ids(&mut self, step: Launched) -> Result<Vec<u32>> {
        match (&mut self.device, step) {
            (Device::Gpu(on), Launched::Gpu(mode, running)) => {
                let OnGpu { gpu, programs, .. } = &mut **on;
                gpu.finish(&mut programs[mode], running)
            }
            (Device::Cpu { host }, Launched::Cpu(n)) => Ok(host[self.io.ids.0].u32()[..n].to_vec()),
            _ => unreachable!("a step ends where it was begun"),
        }
    }
}

/// An error where no logit was a number.
pub(crate) fn check_drawn(ids: &[u32]) -> Result<()> {
    match ids.contains(&NO_TOKEN) {
        true => {
            Err(Error::request("logits", "at least one finite number", "none: the model or the device computes NaN"))
        }
        false => Ok(()),
    }
}
