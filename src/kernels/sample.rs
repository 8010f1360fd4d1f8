//! `ids[first_id + r]`: the token drawn for the r-th output as [`sampler`](crate::sampler) defines.

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
    /// `logits`: `[rows, V]`; `sampling`: `[R]`, a [`Draw`] each and the row that it draws from; `ids`: those of several steps.
    pub fn sample(&mut self, logits: Tensor, sampling: Tensor, ids: Tensor) {
        self.expect(sampling, Element::U32, 8);
        self.expect(ids, Element::U32, 1);
        let spec = Spec::default().u32("V", self.desc(logits).cols);
        let extents = [Extent::Per(Count::Outputs, 1), Extent::Fixed(1), Extent::Fixed(1)];
        self.dispatch(&SAMPLE, spec, &[logits, sampling, ids], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [logits, sampling, ids] = tensors else { unreachable!() };
    let (v, logits) = (spec.get_u32("V"), logits.f32());
    let ids = &mut ids.u32_mut()[step.first_id as usize..][..step.n_outputs as usize];
    for (id, want) in ids.iter_mut().zip(sampling.u32().as_chunks::<8>().0) {
        *id = sample(&logits[want[6] as usize * stride(v)..][..v], Draw::from_words(*want));
    }
}

/// A row is read once where the token is the likeliest; drawing from the rest reads it more often.
fn cost(_: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [logits, sampling, ids] = tensors else { unreachable!() };
    let rows = step.n_outputs as usize;
    Cost::new(logits.bytes_of(rows) + sampling.bytes_of(rows), ids.bytes_of(rows), rows * logits.cols)
}
