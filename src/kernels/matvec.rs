//! `y[t, n] = sum_k w[n, k] * x[t, k]`, or the same added to `y`, for the few tokens of a decode step.

use rayon::prelude::*;

use super::matmul::MATMUL;
use super::{ADD_DOT, LINEAR};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, Weight, stride};
use crate::program::{Mode, Recorder};

/// See the module.
pub static MATVEC: Kernel = Kernel {
    name: "matvec",
    source: include_str!("../../shaders/matvec.wgsl"),
    bindings: &[("step", Access::Step), ("x", Read), ("w", Read), ("y", ReadWrite)],
    reference,
};

impl Recorder<'_> {
    /// `x`: `[T, K]`, `w`: `[N, K]`, `y`: `[T, N]`. Records matvec for decode, matmul for prefill.
    pub fn linear(&mut self, x: Tensor, w: &Weight, y: Tensor) {
        self.linear_with(x, w, y, false);
    }

    /// As [`linear`](Self::linear), added to `y`.
    pub fn linear_add(&mut self, x: Tensor, w: &Weight, y: Tensor) {
        self.linear_with(x, w, y, true);
    }

    fn linear_with(&mut self, x: Tensor, w: &Weight, y: Tensor, add: bool) {
        self.expect(x, Element::F32, w.cols);
        self.expect(y, Element::F32, w.rows);
        let (bound, tile) = (self.bound(x), self.tile());
        let mut row0 = 0;
        for &part in &w.parts {
            let (format, rows) = (self.format(part), self.desc(part).rows);
            let spec =
                Spec::default().include(format.wgsl).include(ADD_DOT).include(LINEAR).u32("N", rows).u32("K", w.cols);
            let spec = spec.u32("GROUPS", w.cols.div_ceil(32)).u32("ROW0", row0).u32("STRIDE", stride(w.rows));
            let spec = spec.u32("ADD", add as usize).u32("OUTPUTS", (bound == Count::Outputs) as usize);
            let spec = spec.u32("LANES", tile.lanes).u32("ROWS", tile.rows);
            let across = Extent::Fixed(rows.div_ceil(tile.lanes * tile.rows));
            let (kernel, spec, down) = match self.mode() {
                Mode::Decode => (&MATVEC, spec, Extent::Fixed(1)),
                Mode::Prefill => (&MATMUL, spec.u32("TOKENS", tile.tokens), Extent::Per(bound, tile.tokens)),
            };
            self.dispatch(kernel, spec, &[x, part, y], [across, down, Extent::Fixed(1)]);
            row0 += rows;
        }
    }
}

/// Shared with matmul: both compute the same product.
pub(super) fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [x, w, y] = tensors else { unreachable!() };
    let [k, row0, y_stride, add] = ["K", "ROW0", "STRIDE", "ADD"].map(|name| spec.get_u32(name));
    let (rows, w, y) = (step.rows(spec), w.weight(), y.f32_mut());
    let x: Vec<Vec<f64>> =
        x.f32().chunks(stride(k)).take(rows).map(|row| row[..k].iter().map(|&v| v as f64).collect()).collect();
    // Rows of w in parallel: products[n][t].
    let products: Vec<Vec<f64>> = (0..w.rows)
        .into_par_iter()
        .map_init(
            || vec![0.0; k],
            |weights, n| {
                w.decode_row(n, weights);
                x.iter().map(|x| dot(weights, x)).collect()
            },
        )
        .collect();
    for (n, products) in products.iter().enumerate() {
        for (t, product) in products.iter().enumerate() {
            let at = t * y_stride + row0 + n;
            y[at] = if add == 1 { (y[at] as f64 + product) as f32 } else { *product as f32 };
        }
    }
}

/// In f64, as eight interleaved sums so that it vectorises.
fn dot(w: &[f32], x: &[f64]) -> f64 {
    let (w8, w_rest) = w.as_chunks::<8>();
    let (x8, x_rest) = x.as_chunks::<8>();
    let mut sums = [0.0; 8];
    for (w, x) in w8.iter().zip(x8) {
        for i in 0..8 {
            sums[i] += w[i] as f64 * x[i];
        }
    }
    sums.iter().sum::<f64>() + w_rest.iter().zip(x_rest).map(|(w, x)| *w as f64 * x).sum::<f64>()
}
