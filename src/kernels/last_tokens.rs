//! `y[r, c] = x[outputs[r], c]`: the tokens whose logits are wanted.

use super::WORKGROUP;
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, stride};
use crate::program::Recorder;

/// See the module.
pub static LAST_TOKENS: Kernel = Kernel {
    name: "last_tokens",
    source: include_str!("../../shaders/last_tokens.wgsl"),
    bindings: &[("step", Access::Step), ("outputs", Read), ("x", Read), ("y", ReadWrite)],
    reference,
};

impl Recorder<'_> {
    /// `outputs`: `[R]` token indices; `x`: `[T, C]`; `y`: `[R, C]`.
    pub fn last_tokens(&mut self, outputs: Tensor, x: Tensor, y: Tensor) {
        let c = self.desc(x).cols;
        self.expect(outputs, Element::U32, 1);
        self.expect(y, Element::F32, c);
        let c4 = c.div_ceil(4);
        let extents = [Extent::Fixed(c4.div_ceil(WORKGROUP)), Extent::Per(Count::Outputs, 1), Extent::Fixed(1)];
        self.dispatch(&LAST_TOKENS, Spec::default().u32("C4", c4), &[outputs, x, y], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [outputs, x, y] = tensors else { unreachable!() };
    let c = stride(4 * spec.get_u32("C4"));
    for (y, &t) in y.f32_mut().chunks_mut(c).zip(outputs.u32()).take(step.n_outputs as usize) {
        y.copy_from_slice(&x.f32()[t as usize * c..][..c]);
    }
}
