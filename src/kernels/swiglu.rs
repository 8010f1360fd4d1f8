//! `y[t, f] = silu(gate[t, f]) * up[t, f]`, `silu(x) = x / (1 + exp(-x))`
//!
//! Source: Shazeer 2020, arXiv:2002.05202, equation 6.

use super::{Gate, WORKGROUP};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static SWIGLU: Kernel = Kernel {
    name: "swiglu",
    source: include_str!("../../shaders/swiglu.wgsl"),
    bindings: &[("step", Access::Step), ("gate", Read), ("up", Read), ("y", ReadWrite)],
    reference,
    cost,
};

impl Recorder<'_> {
    /// All `[T, F]`.
    pub fn swiglu(&mut self, gate: Tensor, up: Tensor, y: Tensor) {
        let f = self.desc(gate).cols;
        self.expect(up, Element::F32, f);
        self.expect(y, Element::F32, f);
        let f4 = f.div_ceil(4);
        let extents = [Extent::Fixed(f4.div_ceil(WORKGROUP)), Extent::Per(Count::Tokens, 1), Extent::Fixed(1)];
        self.dispatch(&SWIGLU, Spec::default().u32("F4", f4), &[gate, up, y], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [gate, up, y] = tensors else { unreachable!() };
    let n = step.n_tokens as usize * 4 * spec.get_u32("F4");
    for ((gate, up), y) in gate.f32()[..n].iter().zip(up.f32()).zip(y.f32_mut()) {
        *y = (Gate::Silu.of(*gate as f64) * *up as f64) as f32;
    }
}

fn cost(_: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [gate, up, y] = tensors else { unreachable!() };
    let rows = step.n_tokens as usize;
    Cost::new(gate.bytes_of(rows) + up.bytes_of(rows), y.bytes_of(rows), SWIGLU_FLOPS * rows * y.cols)
}

/// Operations for each element.
pub(super) const SWIGLU_FLOPS: usize = 4;
