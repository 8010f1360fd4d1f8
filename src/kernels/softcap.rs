//! `x[r, v] = cap * tanh(x[r, v] / cap)`
//!
//! Source: Bello et al. 2016, arXiv:1611.09940, section A.1; as Gemma 2 has it: arXiv:2408.00118, section 2.

use super::{SOFTCAP_OF, WORKGROUP};
use crate::kernel::Access::ReadWrite;
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc, stride};
use crate::program::Recorder;

/// See the module.
pub static SOFTCAP: Kernel = Kernel {
    name: "softcap",
    source: include_str!("../../shaders/softcap.wgsl"),
    bindings: &[("step", Access::Step), ("x", ReadWrite)],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `x`: `[R, V]`, in place; `cap` above 0.
    pub fn softcap(&mut self, x: Tensor, cap: f32) {
        let v = self.desc(x).cols;
        self.expect(x, Element::F32, v);
        assert!(cap > 0.0 && self.bound(x) == Count::Outputs, "softcap: {cap} on {}", self.desc(x).name);
        let v4 = v.div_ceil(4);
        let extents = [Extent::Fixed(v4.div_ceil(WORKGROUP)), Extent::Per(Count::Outputs, 1), Extent::Fixed(1)];
        self.dispatch(&SOFTCAP, Spec::default().include(SOFTCAP_OF).u32("V4", v4).f32("CAP", cap), &[x], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [x] = tensors else { unreachable!() };
    let n = step.n_outputs as usize * stride(4 * spec.get_u32("V4"));
    for x in &mut x.f32_mut()[..n] {
        *x = softcap(*x as f64, spec.get_f32("CAP")) as f32;
    }
}

fn cost(_: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [x] = tensors else { unreachable!() };
    let bytes = x.bytes_of(step.n_outputs as usize);
    Cost::new(bytes, bytes, 3 * step.n_outputs as usize * x.cols)
}

/// Shared with attention.
pub(super) fn softcap(x: f64, cap: f64) -> f64 {
    cap * (x / cap).tanh()
}
