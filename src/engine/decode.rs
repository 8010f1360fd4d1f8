//! Decoding without waiting: the ids that a step draws are where the next one reads them, so that several steps are on the
//! device before the first id comes back.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};

use super::{Device, Engine, Inputs, OnGpu};
use crate::error::{Error, Result};
use crate::gpu::Running;
use crate::kernel::Step;
use crate::kernels::{LOGPROBS_ROW, PENDING, read_logprobs};
use crate::memory::stride;
use crate::program::Mode;
use crate::sampler::{Logprobs, NO_TOKEN};
use crate::session::Session;

/// Steps on the device at once: with the one that begins, as many as have ids on the device.
const AHEAD: usize = PENDING;

/// A step that was begun; what it draws is read when it has ended.
pub(crate) struct Launched {
    on: On,
    /// Of the logprobs of each output.
    alternatives: Vec<Option<usize>>,
}

enum On {
    Gpu(Mode, Running),
    /// Done: its ids, and its logprobs if any are wanted.
    Cpu(Vec<u32>, Vec<f32>),
}

/// A token that a step has drawn.
#[derive(Clone, Debug)]
pub(crate) struct Drawn {
    pub id: u32,
    /// Where they are wanted.
    pub logprobs: Option<Logprobs>,
}

impl Engine {
    /// Draws up to `most` tokens for each of `sessions`, of which each has one token pending, or none and is at its end. Calls
    /// `each` with the ids of every step, in the order of the sessions, which have got them then; it may break off. Several
    /// steps are begun before the first is over: what they compute beyond the last id taken is forgotten. A session that is alone may
    /// [speculate](Session::speculation).
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
            let drained = self.drawn(step);
            if result.is_ok() {
                drained?;
            }
        }
        for s in sessions.iter_mut() {
            s.take_draft();
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
        let speculates = sessions.len() == 1;
        // What may come next is known when the token before it is.
        let waits = !matches!(self.device, Device::Gpu(_)) || sessions.iter().any(|s| s.is_constrained());
        let ahead = if waits { 1 } else { AHEAD };
        let mut taken = 0;
        'decoding: while taken < most {
            while taken + launched.len() < most && launched.len() < ahead {
                let is_idle = launched.is_empty();
                if speculates && is_idle && self.draft(sessions[0], most - taken - 1)? > 0 {
                    match self.begin(sessions, &[1 + sessions[0].drafted()]) {
                        Ok(step) => {
                            launched.push_back(step);
                            break;
                        }
                        Err(Error::OutOfPages { .. }) => drop(sessions[0].take_draft()),
                        Err(e) => return Err(e),
                    }
                } else if speculates && !is_idle && self.would_draft(sessions[0]) {
                    break;
                }
                match self.begin(sessions, &ones) {
                    Ok(step) => launched.push_back(step),
                    Err(e) if taken == 0 && is_idle => return Err(e),
                    Err(Error::ContextFull { .. } | Error::OutOfPages { .. }) => break,
                    Err(e) => return Err(e),
                }
            }
            let Some(step) = launched.pop_front() else { break };
            let mut drawn = self.drawn(step)?;
            if speculates {
                drawn = self.verify(sessions[0], drawn);
            }
            let mut drawn = drawn.into_iter().peekable();
            while drawn.peek().is_some() {
                let each_drawn: Vec<_> = drawn.by_ref().take(sessions.len()).collect();
                let ids: Vec<_> = each_drawn.iter().map(|drawn| drawn.id).collect();
                ids.iter().try_for_each(|id| check_drawn(*id))?;
                for (s, Drawn { id, logprobs }) in sessions.iter_mut().zip(each_drawn) {
                    s.take(id, logprobs);
                }
                taken += 1;
                if each(&ids).is_break() {
                    break 'decoding;
                }
            }
        }
        Ok(())
    }

    /// Begins a step of `counts[i]` tokens of session i behind its last computed position, and draws for those that it brings to
    /// their end, or beyond: a token without an id yet is the one drawn by the step begun last. Behind a draft, which must be in it, it
    /// draws for each of its tokens too. On an error nothing has changed.
    pub(crate) fn begin(&mut self, sessions: &mut [&mut Session], counts: &[usize]) -> Result<Launched> {
        let ends = |(s, n): (&&mut Session, &usize)| match *n {
            n if n > 0 && s.table.len() + n >= s.tokens().len() => 1 + s.drafted(),
            _ => 0,
        };
        let outputs: Vec<_> = sessions.iter().zip(counts).map(ends).collect();
        let launched = self.attempt(sessions, |engine, sessions| {
            let inputs = engine.inputs(sessions, counts, &outputs, true)?;
            engine.launch(&inputs)
        })?;
        let mut at = self.first_id();
        for (s, n) in sessions.iter_mut().zip(outputs).filter(|(_, n)| *n > 0) {
            at += n as u32;
            s.draws(self.steps, at - 1);
        }
        Ok(launched)
    }

    /// Whether the next token of a session, which no id is known of, is one that the step begun last draws.
    pub(crate) fn draws_next_of(&self, session: &Session) -> bool {
        session.drawn(session.table.len()).0 == self.steps
    }

    /// Where the step begun last leaves its ids.
    fn first_id(&self) -> u32 {
        (self.steps % PENDING as u64) as u32 * self.memory.capacity.outputs as u32
    }

    /// Begins the step of `inputs`.
    pub(super) fn launch(&mut self, inputs: &Inputs) -> Result<Launched> {
        self.write(inputs)?;
        self.steps += 1;
        let (step, mode) = (Step { first_id: self.first_id(), ..inputs.step() }, inputs.mode());
        let (first, rows) = (step.first_id as usize, step.n_logprobs as usize);
        let (ids, logprobs) = (first..first + inputs.outputs.len(), 0..rows * stride(LOGPROBS_ROW));
        let on = match &mut self.device {
            Device::Gpu(on) => {
                let OnGpu { gpu, buffers, programs, .. } = &mut **on;
                let bytes = |words: Range<usize>| 4 * words.start..4 * words.end;
                let wanted = [(self.io.ids, bytes(ids)), (self.io.logprobs, bytes(logprobs))];
                On::Gpu(mode, gpu.launch(buffers, &mut programs[mode], &step, &wanted)?)
            }
            Device::Cpu { host } => {
                // One program for all batches: others round in other places, and bits would depend on the batch.
                self.programs[Mode::Prefill].run_reference(&step, host);
                On::Cpu(host[self.io.ids.0].u32()[ids].to_vec(), host[self.io.logprobs.0].f32()[logprobs].to_vec())
            }
        };
        Ok(Launched { on, alternatives: inputs.alternatives.clone() })
    }

    /// What a step has drawn.
    pub(crate) fn drawn(&mut self, Launched { on, alternatives }: Launched) -> Result<Vec<Drawn>> {
        let (ids, logprobs) = match (&mut self.device, on) {
            (Device::Gpu(on), On::Gpu(mode, running)) => {
                let OnGpu { gpu, programs, .. } = &mut **on;
                let mut ids = gpu.finish(&mut programs[mode], running)?;
                let logprobs = ids.split_off(alternatives.len()).into_iter().map(f32::from_bits).collect();
                (ids, logprobs)
            }
            (_, On::Cpu(ids, logprobs)) => (ids, logprobs),
            _ => unreachable!("a step ends where it was begun"),
        };
        let mut rows = logprobs.chunks(stride(LOGPROBS_ROW));
        let drawn = ids.into_iter().zip(alternatives).map(|(id, alternatives)| {
            let (row, vocab) = (rows.next().unwrap_or_default(), self.config.vocab);
            Drawn { id, logprobs: alternatives.map(|n| read_logprobs(row, id, n, vocab)) }
        });
        Ok(drawn.collect())
    }
}

/// An error where no logit was a number.
pub(crate) fn check_drawn(id: u32) -> Result<()> {
    match id {
        NO_TOKEN => {
            Err(Error::request("logits", "at least one finite number", "none: the model or the device computes NaN"))
        }
        _ => Ok(()),
    }
}
