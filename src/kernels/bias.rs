//! `y[t, c] += b[c]`

use super::WORKGROUP;
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc, stride};
use crate::program::Recorder;

/// See the module.
pub static BIAS: Kernel = Kernel {
    name: "bias",
    source: include_str!("../../shaders/bias.wgsl"),
    bindings: &[("step", Access::Step), ("b", Read), ("y", ReadWrite)],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `b`: `[C]`, `y`: `[T, C]`.
    pub fn bias(&mut self, b: Tensor, y: Tensor) {
        let c = self.desc(y).cols;
        self.expect(b, Element::F32, c);
        let c4 = c.div_ceil(4);
        let extents = [Extent::Fixed(c4.div_ceil(WORKGROUP)), Extent::Per(Count::Tokens, 1), Extent::Fixed(1)];
        self.dispatch(&BIAS, Spec::default().u32("C4", c4), &[b, y], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [b, y] = tensors else { unreachable!() };
    for y in y.f32_mut().chunks_mut(stride(4 * spec.get_u32("C4"))).take(step.n_tokens as usize) {
        for (y, b) in y.iter_mut().zip(b.f32()) {
            *y = (*y as f64 + *b as f64) as f32;
        }
    }
}

fn cost(_: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [b, y] = tensors else { unreachable!() };
    let rows = step.n_tokens as usize;
    Cost::new(b.bytes() + y.bytes_of(rows), y.bytes_of(rows), rows * y.cols)
}
