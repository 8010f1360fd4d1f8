//! `y[t, n] = sum_k w[n, k] * x[t, k]` of `x` normalised: see [`rmsnorm`](Recorder::rmsnorm).

use super::linear::{Norm, normed_cost, normed_rows, times};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc, Weight, stride};
use crate::program::Recorder;

/// See the module.
pub static LINEAR_NORM: Kernel = Kernel {
    name: "linear_norm",
    source: include_str!("../../shaders/linear_norm.wgsl"),
    bindings: &[("step", Access::Step), ("x", Read), ("vectors", Read), ("w", Read), ("y", ReadWrite)],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `x`: `[T, K]`; each `y`: `[T, N]`, N the rows of all its weights, `[_, K]`, one after the other.
    pub fn linear_norm(&mut self, x: Tensor, norm: Norm, results: &[(&[Weight], Tensor)]) {
        let (x, spec) = self.normed(x, norm);
        for (weights, y) in results {
            let n: usize = weights.iter().map(|w| w.rows).sum();
            self.expect(*y, Element::F32, n);
            let mut row0 = 0;
            for &part in weights.iter().flat_map(|w| &w.parts) {
                let (tiled, [across, down]) = self.tiled(part, Count::Tokens, self.lanes_of(part), spec.clone());
                let spec = tiled.u32("ROW0", row0).u32("STRIDE", stride(n));
                self.dispatch(&LINEAR_NORM, spec, &[x, norm.gain, part, *y], [across, down, Extent::Fixed(1)]);
                row0 += self.desc(part).rows;
            }
        }
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [x, vectors, w, y] = tensors else { unreachable!() };
    let [row0, y_stride] = ["ROW0", "STRIDE"].map(|name| spec.get_u32(name));
    let (x, y) = (normed_rows(x, spec, step.n_tokens as usize, vectors.f32()), y.f32_mut());
    for (n, products) in times(w.weight(), &x).iter().enumerate() {
        for (t, product) in products.iter().enumerate() {
            y[t * y_stride + row0 + n] = *product as f32;
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [x, _, w, _] = tensors else { unreachable!() };
    let rows = step.n_tokens as usize;
    normed_cost(spec, rows, x, w, w.rows) + Cost::new(0, 4 * rows * w.rows, 0)
}
