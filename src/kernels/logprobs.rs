//! `logprobs[r]`: what [`Logprobs`](crate::sampler::Logprobs) of the token drawn for the r-th output are made of.

use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc, stride};
use crate::program::Recorder;
use crate::sampler::{ALTERNATIVES, Logprobs};

/// See the module.
pub static LOGPROBS: Kernel = Kernel {
    name: "logprobs",
    source: include_str!("../../shaders/logprobs.wgsl"),
    bindings: &[("step", Access::Step), ("logits", Read), ("sampling", Read), ("ids", Read), ("logprobs", ReadWrite)],
    reference,
    cost,
};

/// f32 of a row: the log of the sum of exponentials, the logit of the token drawn, ids and logits of alternatives.
pub const LOGPROBS_ROW: usize = 2 + 2 * ALTERNATIVES;

impl Recorder<'_> {
    /// `logits`: `[R, V]`; `sampling`: `[R]`, each with the number of alternatives wanted; `ids`: what was drawn; `logprobs`:
    /// `[R, LOGPROBS_ROW]`.
    pub fn logprobs(&mut self, logits: Tensor, sampling: Tensor, ids: Tensor, logprobs: Tensor) {
        self.expect(sampling, Element::U32, 8);
        self.expect(ids, Element::U32, 1);
        self.expect(logprobs, Element::F32, LOGPROBS_ROW);
        let spec = Spec::default().u32("V", self.desc(logits).cols).u32("MOST", ALTERNATIVES);
        let extents = [Extent::Per(Count::Logprobs, 1), Extent::Fixed(1), Extent::Fixed(1)];
        self.dispatch(&LOGPROBS, spec, &[logits, sampling, ids, logprobs], extents);
    }
}

/// What a row of the kernel's says, with `alternatives` of a vocabulary of `vocab`, of the token `id`.
pub fn read_logprobs(row: &[f32], id: u32, alternatives: usize, vocab: usize) -> Logprobs {
    let logprob = |logit: f32| (f64::from(logit) - f64::from(row[0])) as f32;
    let all = row[2..].as_chunks::<2>().0.iter().take(alternatives);
    let top = all.take_while(|[id, _]| (*id as usize) < vocab).map(|[id, logit]| (*id as u32, logprob(*logit)));
    Logprobs { id, logprob: logprob(row[1]), top: top.collect() }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [logits, sampling, ids, logprobs] = tensors else { unreachable!() };
    let (v, first) = (spec.get_u32("V"), step.first_id as usize);
    let rows = logits.f32().chunks(stride(v)).zip(logprobs.f32_mut().chunks_mut(stride(LOGPROBS_ROW)));
    let wants = sampling.u32().as_chunks::<8>().0.iter().map(|want| want[7] as usize);
    for (((logits, row), wanted), id) in rows.zip(wants).zip(&ids.u32()[first..]).take(step.n_logprobs as usize) {
        if wanted == 0 {
            continue;
        }
        let mut sorted: Vec<(usize, f32)> = logits[..v].iter().copied().enumerate().collect();
        sorted.retain(|(_, x)| *x > f32::MIN);
        sorted.sort_by(|a, b| b.1.partial_cmp(&a.1).expect("numbers").then(a.0.cmp(&b.0)));
        let largest = sorted.first().map_or(f64::from(f32::MIN), |(_, x)| f64::from(*x));
        let sum: f64 = sorted.iter().map(|(_, x)| (f64::from(*x) - largest).exp()).sum();
        row[0] = (largest + sum.ln()) as f32;
        row[1] = logits[(*id as usize).min(v - 1)];
        let ends = std::iter::repeat(&(u32::MAX as usize, f32::MIN));
        for (to, (id, x)) in row[2..].as_chunks_mut::<2>().0.iter_mut().zip(sorted.iter().chain(ends)).take(wanted - 1)
        {
            *to = [*id as f32, *x];
        }
    }
}

/// A row is read twice, and once more for each alternative.
fn cost(_: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [logits, _, _, logprobs] = tensors else { unreachable!() };
    let rows = step.n_logprobs as usize;
    Cost::new(logits.bytes_of(rows), logprobs.bytes_of(rows), 2 * rows * logits.cols)
}
