//! `ranks[first + g] = (tr C)² / tr C²`, C the covariance of the coordinates of up to [`SAMPLE`] rows of a tree: the effective rank r_Σ of
//! a head's keys in the metric of its queries. A head of a high rank is hard to cover.
//!
//! Source: the participation ratio; r_Σ of Roy and Vetterli 2007, "The effective rank", is of its kind.

use super::aoc_lookup::{Cover, CoverTensors};
use crate::kernel::Access::{Read, ReadWrite, Uniform};
use crate::kernel::{Access, Cost, Extent, Kernel, Spec, Step};
use crate::memory::{Host, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_RANK: Kernel = Kernel {
    name: "aoc_rank",
    source: include_str!("../../shaders/aoc_rank.wgsl"),
    bindings: &[("step", Access::Step), ("points", Read), ("ranks", ReadWrite), ("layer", Uniform)],
    reference,
    cost,
};

/// Rows that are looked at.
const SAMPLE: usize = 128;

impl Recorder<'_> {
    /// Of a layer whose first head `layer` has, for `kv_heads` heads; the rows are the step's.
    pub fn aoc_rank(&mut self, kv_heads: usize, cover: Cover, layer: Tensor, tensors: CoverTensors) {
        let spec = Spec::default().u32("POINTS", Cover::POINTS).u32("CAPACITY", cover.rows);
        let spec = spec.u32("SAMPLE", SAMPLE);
        self.dispatch(&AOC_RANK, spec, &[tensors.points, tensors.ranks, layer], [kv_heads, 1, 1].map(Extent::Fixed));
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [points, ranks, layer] = tensors else { unreachable!() };
    let [n_points, capacity, sample] = ["POINTS", "CAPACITY", "SAMPLE"].map(|n| spec.get_u32(n));
    let n = (step.rows as usize).min(sample);
    let apart = step.rows as usize / n;
    for g in 0..points.f32().len() / (capacity * n_points) {
        let x = |i: usize, p: usize| f64::from(points.f32()[(g * capacity + i * apart) * n_points + p]);
        let means: Vec<_> = (0..n_points).map(|p| (0..n).map(|i| x(i, p)).sum::<f64>() / n as f64).collect();
        let covariance =
            |a: usize, b: usize| (0..n).map(|i| (x(i, a) - means[a]) * (x(i, b) - means[b])).sum::<f64>() / n as f64;
        let trace: f64 = (0..n_points).map(|p| covariance(p, p)).sum();
        let squares: f64 = (0..n_points * n_points).map(|i| covariance(i / n_points, i % n_points).powi(2)).sum();
        ranks.f32_mut()[layer.u32()[0] as usize + g] = (trace * trace / squares.max(1e-30)) as f32;
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [points, _, layer] = tensors else { unreachable!() };
    let (n, heads) = ((step.rows as usize).min(SAMPLE), points.rows / spec.get_u32("CAPACITY"));
    let n_points = spec.get_u32("POINTS");
    Cost::new(heads * points.bytes_of(n) + layer.bytes(), 4 * heads, heads * n * n_points * n_points * 2)
}
