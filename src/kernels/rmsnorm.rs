//! `y[t, h, c] = w[c] * x[t, h, c] / sqrt(mean_c(x[t, h, c]^2) + eps)`, or the same added to `y`
//!
//! Source: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4.

use super::{lane_include, rms_include};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc, Tile, stride};
use crate::program::Recorder;

/// See the module.
pub static RMSNORM: Kernel = Kernel {
    name: "rmsnorm",
    source: include_str!("../../shaders/rmsnorm.wgsl"),
    bindings: &[("step", Access::Step), ("x", Read), ("w", Read), ("y", ReadWrite)],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `x`: `[T, C]`, `w`: `[C]`, `y`: `[T, C]`; or `x`, `y`: `[T, H*C]`, of which every head is normalised by itself.
    pub fn rmsnorm(&mut self, x: Tensor, w: Tensor, eps: f32, y: Tensor) {
        self.rmsnorm_with(x, w, eps, y, false);
    }

    /// As [`rmsnorm`](Self::rmsnorm), added to `y`.
    pub fn rmsnorm_add(&mut self, x: Tensor, w: Tensor, eps: f32, y: Tensor) {
        self.rmsnorm_with(x, w, eps, y, true);
    }

    fn rmsnorm_with(&mut self, x: Tensor, w: Tensor, eps: f32, y: Tensor, add: bool) {
        let (c, cols, bound) = (self.desc(w).cols, self.desc(x).cols, self.bound(x));
        self.expect(w, Element::F32, c);
        self.expect(y, Element::F32, cols);
        let heads = cols / c;
        // Heads stand side by side: between them there is no padding.
        assert!(heads * c == cols && (heads == 1 || c.is_multiple_of(4)), "rmsnorm: {cols} elements in heads of {c}");
        let spec = rms_includes(self.tile()).u32("C", c).u32("H", heads).f32("EPS", eps);
        let spec = spec.u32("ADD", add as usize).u32("OUTPUTS", (bound == Count::Outputs) as usize);
        self.dispatch(&RMSNORM, spec, &[x, w, y], [Extent::Per(bound, 1), Extent::Fixed(heads), Extent::Fixed(1)]);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [x, w, y] = tensors else { unreachable!() };
    let (c, eps) = (spec.get_u32("C"), spec.get_f32("EPS"));
    let add = spec.get_u32("ADD");
    let rows = step.rows(spec) * spec.get_u32("H");
    let w = w.f32();
    for (x, y) in x.f32().chunks(stride(c)).zip(y.f32_mut().chunks_mut(stride(c))).take(rows) {
        for (y, value) in y.iter_mut().zip(norm_row(&x[..c], w, eps)) {
            *y = if add == 1 { (*y as f64 + value) as f32 } else { value as f32 };
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [x, w, y] = tensors else { unreachable!() };
    let (rows, add) = (step.rows(spec), spec.get_u32("ADD"));
    let read = x.bytes_of(rows) + w.bytes() + add * y.bytes_of(rows);
    Cost::new(read, y.bytes_of(rows), (NORM_FLOPS + add) * rows * x.cols)
}

/// Operations of a norm for each element: its square, their sum, two products.
pub(super) const NORM_FLOPS: usize = 4;

/// The files that sum a row's squares.
pub(super) fn rms_includes(tile: Tile) -> Spec {
    Spec::default().include(rms_include(tile)).include(lane_include(tile))
}

/// A row, normalised.
pub(super) fn norm_row<'a>(x: &'a [f32], gains: &'a [f32], eps: f64) -> impl Iterator<Item = f64> + 'a {
    let mean = x.iter().map(|&v| (v as f64).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    x.iter().zip(gains).map(move |(x, gain)| *gain as f64 * *x as f64 * scale)
}
