//! `y[t, f] = act(sum_k gate[f, k] * x[t, k]) * sum_k up[f, k] * x[t, k]`, `act` SiLU or GELU (its tanh form), of `x` or of `x`
//! normalised.
//!
//! Source: Shazeer 2020, arXiv:2002.05202, equations 5 and 6.

use super::geglu::GEGLU_FLOPS;
use super::linear::{Norm, normed_cost, normed_rows, times};
use super::swiglu::SWIGLU_FLOPS;
use super::{GELU, SILU};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc, Weight, WeightStack, stride};
use crate::program::Recorder;

/// See the module.
pub static LINEAR_GLU: Kernel = Kernel {
    name: "linear_glu",
    source: include_str!("../../shaders/linear_glu.wgsl"),
    bindings: &[("step", Access::Step), ("x", Read), ("vectors", Read), ("w", Read), ("y", ReadWrite)],
    reference,
    cost,
};

/// The activation of a gated linear unit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Gate {
    /// x / (1 + exp(-x))
    Silu,
    /// x / (1 + exp(-2 z)), z = sqrt(2 / pi) (x + 0.044715 x³)
    Gelu,
}

impl Gate {
    /// Of `x`, in f64.
    pub(super) fn of(self, x: f64) -> f64 {
        match self {
            Gate::Silu => x / (1.0 + (-x).exp()),
            Gate::Gelu => {
                let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
                0.5 * x * (1.0 + z.tanh())
            }
        }
    }
}

impl Recorder<'_> {
    /// `x`: `[T, K]`; `w`: the pairs of gate and up, `[2F, K]`, as [`Memory::pairs`](crate::memory::Memory::pairs) makes them;
    /// `y`: `[T, F]`.
    pub fn linear_glu(&mut self, x: Tensor, norm: Norm, w: &Weight, gate: Gate, y: Tensor) {
        let f = self.desc(y).cols;
        self.expect(y, Element::F32, f);
        let (x, spec) = self.normed(x, norm);
        assert_eq!(w.rows, 2 * f, "linear_glu: rows of gate and up");
        let mut f0 = 0;
        for (part, pairs) in self.pairs(w) {
            let (tiled, [across, down]) = self.tiled(part, Count::Tokens, self.tile().lanes, spec.clone());
            let act = if gate == Gate::Silu { SILU } else { GELU };
            let spec = tiled.include(act).u32("F", pairs).u32("F0", f0).u32("STRIDE", stride(f));
            self.dispatch(&LINEAR_GLU, spec, &[x, norm.gain, part, y], [across, down, Extent::Fixed(1)]);
            f0 += pairs;
        }
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [x, vectors, w, y] = tensors else { unreachable!() };
    let [f, f0, y_stride] = ["F", "F0", "STRIDE"].map(|name| spec.get_u32(name));
    let gate = if spec.includes(SILU) { Gate::Silu } else { Gate::Gelu };
    let x = normed_rows(x, spec, step.n_tokens as usize, vectors.f32());
    let products = times(w.weight(), &x);
    for i in 0..f {
        let [row, second] = WeightStack::pair(i);
        for (t, _) in x.iter().enumerate() {
            let value = gate.of(products[row][t]) * products[second][t];
            y.f32_mut()[t * y_stride + f0 + i] = value as f32;
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [x, _, w, _] = tensors else { unreachable!() };
    let (rows, f) = (step.n_tokens as usize, spec.get_u32("F"));
    let act = if spec.includes(SILU) { SWIGLU_FLOPS } else { GEGLU_FLOPS };
    normed_cost(spec, rows, x, w, 2 * f) + Cost::new(0, 4 * rows * f, act * rows * f)
}
