//! `points[g, i, p] = k[i] · query[p] * scale`: coordinates of the rows of a tree to be built, one for each recent query of a head
//! that aoc_lookup kept. Distance in them is how differently those queries score two rows. The rows' first order is as they come.
//!
//! Source: the metric of the queries of Desai et al., "Squeezed attention" (arXiv:2411.09688), section 4, sampled.

use super::aoc_lookup::{Cover, CoverTensors, kv_spec};
use super::{AttentionDims, WORKGROUP, kv_row};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Host, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_POINTS: Kernel = Kernel {
    name: "aoc_points",
    source: include_str!("../../shaders/aoc_points.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("source", Read),
        ("queries", Read),
        ("k_pages", Read),
        ("v_pages", Read),
        ("points", ReadWrite),
        ("order", ReadWrite),
    ],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `kv`: k and v pages of a layer, `[pages * G * PAGE, D]`; the rows are the step's.
    pub fn aoc_points(&mut self, d: AttentionDims, cover: Cover, scale: f32, tensors: CoverTensors, kv: [Tensor; 2]) {
        let spec = kv_spec(d, self.desc(kv[0]).element);
        let spec = spec.u32("POINTS", Cover::POINTS).u32("CAPACITY", cover.rows).f32("SCALE", scale);
        let groups = [Extent::Per(Count::Rows, WORKGROUP), Extent::Fixed(Cover::POINTS / 4), Extent::Fixed(d.kv_heads)];
        let CoverTensors { source, queries, points, order, .. } = tensors;
        self.dispatch(&AOC_POINTS, spec, &[source, queries, kv[0], kv[1], points, order], groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [source, queries, k_pages, v_pages, points, order] = tensors else { unreachable!() };
    let [heads, page, n_points, capacity] = ["G", "PAGE", "POINTS", "CAPACITY"].map(|n| spec.get_u32(n));
    let (d, scale) = (4 * spec.get_u32("D4"), spec.get_f32("SCALE"));
    for g in 0..heads {
        for i in 0..step.rows as usize {
            let from = source.u32()[i] as usize;
            let row = kv_row(spec, (from / page) as u32, g, from) * d;
            for p in 0..n_points {
                let query = kv_row(spec, queries.u32()[p / (2 * page)], g, p) * d;
                let half = if p / page % 2 == 1 { &*v_pages } else { &*k_pages };
                let dot: f64 = (0..d).map(|j| k_pages.kv(row + j) as f64 * half.kv(query + j) as f64).sum();
                points.f32_mut()[(g * capacity + i) * n_points + p] = (dot * scale) as f32;
            }
            order.u32_mut()[g * capacity + i] = i as u32;
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [source, _, k_pages, _, points, order] = tensors else { unreachable!() };
    let [heads, n_points, d4] = ["G", "POINTS", "D4"].map(|n| spec.get_u32(n));
    let n = step.rows as usize;
    let read = source.bytes_of(n) + (n + n_points) * heads * k_pages.bytes_of(1);
    Cost::new(read, heads * (points.bytes_of(n) + order.bytes_of(n)), heads * n * n_points * 8 * d4)
}
