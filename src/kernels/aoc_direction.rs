//! The direction along which the rows of a segment differ most: of their coordinates x, `c[p] = sum_i (x[i, b] - mean[b])
//! (x[i, p] - mean[p])`, b the coordinate of the largest variance. It is the first step of the power iteration for the largest
//! eigenvector of the covariance, from the best axis. Its largest component is 1, or all are 0.
//!
//! Source: the principal-direction tree of Sproull 1991, "Refinements to nearest-neighbor searching in k-dimensional trees".

use super::aoc_lookup::{Cover, CoverTensors};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Host, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_DIRECTION: Kernel = Kernel {
    name: "aoc_direction",
    source: include_str!("../../shaders/aoc_direction.wgsl"),
    bindings: &[("step", Access::Step), ("points", Read), ("order", Read), ("direction", ReadWrite)],
    reference,
    cost,
};

impl Recorder<'_> {
    /// Of the step's segments, for `kv_heads` heads.
    pub fn aoc_direction(&mut self, kv_heads: usize, cover: Cover, tensors: CoverTensors) {
        let spec = Spec::default().u32("POINTS", Cover::POINTS).u32("CAPACITY", cover.rows);
        let groups = [Extent::Per(Count::Segments, 1), Extent::Fixed(kv_heads), Extent::Fixed(1)];
        self.dispatch(&AOC_DIRECTION, spec, &[tensors.points, tensors.order, tensors.direction], groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [points, order, direction] = tensors else { unreachable!() };
    let [n_points, capacity] = ["POINTS", "CAPACITY"].map(|n| spec.get_u32(n));
    let segment = step.segment as usize;
    for g in 0..order.u32().len() / capacity {
        for s in 0..step.count(Count::Segments) {
            let rows = &order.u32()[g * capacity + s * segment..][..segment];
            let x = |row: &u32, p: usize| points.f32()[(g * capacity + *row as usize) * n_points + p] as f64;
            let mean = |p| rows.iter().map(|row| x(row, p)).sum::<f64>() / segment as f64;
            let means: Vec<f64> = (0..n_points).map(mean).collect();
            let covariance = |a: usize, b: usize| {
                rows.iter().map(|row| (x(row, a) - means[a]) * (x(row, b) - means[b])).sum::<f64>()
            };
            let variances: Vec<_> = (0..n_points).map(|p| covariance(p, p)).collect();
            let best = (1..n_points).fold(0, |best, p| if variances[p] > variances[best] { p } else { best });
            for p in 0..n_points {
                let component = covariance(best, p) / variances[best].max(1e-30);
                direction.f32_mut()[(g * capacity + s) * n_points + p] = component as f32;
            }
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [points, order, direction] = tensors else { unreachable!() };
    let (n, heads) = (step.rows as usize, order.rows / spec.get_u32("CAPACITY"));
    let written = heads * direction.bytes_of(step.count(Count::Segments));
    Cost::new(heads * (points.bytes_of(n) + order.bytes_of(n)), written, heads * n * spec.get_u32("POINTS") * 8)
}
