//! `y[r, c] = w[c] * x[t, c] / sqrt(mean_c(x[t, c]^2) + eps)`, `t = outputs[r]`: the tokens whose logits are wanted, normalised.
//!
//! Source: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.

use super::rmsnorm::{NORM_FLOPS, norm_row, rms_includes};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc, stride};
use crate::program::Recorder;

/// See the module.
pub static OUTPUT_NORM: Kernel = Kernel {
    name: "output_norm",
    source: include_str!("../../shaders/output_norm.wgsl"),
    bindings: &[("step", Access::Step), ("outputs", Read), ("x", Read), ("w", Read), ("y", ReadWrite)],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `outputs`: `[R]` token indices; `x`: `[T, C]`; `w`: `[C]`; `y`: `[R, C]`.
    pub fn output_norm(&mut self, outputs: Tensor, x: Tensor, w: Tensor, eps: f32, y: Tensor) {
        let c = self.desc(x).cols;
        self.expect(outputs, Element::U32, 1);
        self.expect(w, Element::F32, c);
        self.expect(y, Element::F32, c);
        let spec = rms_includes(self.tile()).u32("C", c).f32("EPS", eps);
        let extents = [Extent::Per(Count::Outputs, 1), Extent::Fixed(1), Extent::Fixed(1)];
        self.dispatch(&OUTPUT_NORM, spec, &[outputs, x, w, y], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [outputs, x, w, y] = tensors else { unreachable!() };
    let (c, eps) = (spec.get_u32("C"), spec.get_f32("EPS"));
    for (y, &t) in y.f32_mut().chunks_mut(stride(c)).zip(outputs.u32()).take(step.n_outputs as usize) {
        for (y, value) in y.iter_mut().zip(norm_row(&x.f32()[t as usize * stride(c)..][..c], w.f32(), eps)) {
            *y = value as f32;
        }
    }
}

fn cost(_: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [outputs, x, w, y] = tensors else { unreachable!() };
    let rows = step.n_outputs as usize;
    let read = outputs.bytes_of(rows) + x.bytes_of(rows) + w.bytes();
    Cost::new(read, y.bytes_of(rows), NORM_FLOPS * rows * x.cols)
}
