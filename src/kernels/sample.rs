//! `ids[r]`: the token drawn from logits row r as [`sampler`](crate::sampler) defines.

use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc, stride};
use crate::program::Recorder;
use crate::sampler::{Draw, sample};

/// See the module.
pub static SAMPLE: Kernel = Kernel {
    name: "sample",
    source: include_str!("../../shaders/sample.wgsl"),
    bindings: &[("step", Access::Step), ("logits", Read), ("sampling", Read), ("ids", ReadWrite)],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `logits`: `[R, V]`; `sampling`: `[R]`, a [`Draw`] each; `ids`: `[R]`.
    pub fn sample(&mut self, logits: Tensor, sampling: Tensor, ids: Tensor) {
        self.expect(sampling, Element::U32, 4);
        self.expect(ids, Element::U32, 1);
        let spec = Spec::default().u32("V", self.desc(logits).cols);
        let extents = [Extent::Per(Count::Outputs, 1), Extent::Fixed(1), Extent::Fixed(1)];
        self.dispatch(&SAMPLE, spec, &[logits, sampling, ids], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [logits, sampling, ids] = tensors else { unreachable!() };
    let v = spec.get_u32("V");
    let rows = logits.f32().chunks(stride(v)).zip(sampling.u32().as_chunks::<4>().0);
    for (id, (logits, draw)) in ids.u32_mut().iter_mut().zip(rows).take(step.n_outputs as usize) {
        *id = sample(&logits[..v], Draw::from_words(*draw));
    }
}

/// A row is read once where the token is the likeliest; drawing from the rest reads it more often.
fn cost(_: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [logits, sampling, ids] = tensors else { unreachable!() };
    let rows = step.n_outputs as usize;
    Cost::new(logits.bytes_of(rows) + sampling.bytes_of(rows), ids.bytes_of(rows), rows * logits.cols)
}
