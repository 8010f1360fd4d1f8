//! A step of the power iteration towards the direction of largest variance of a segment's rows: `c[p] = sum_i (key[i] - mean)
//! x[i, p]`, key = x · direction, over `sum_i |key[i] - key[0]|`, which brings it to the size of x. Recorded by
//! [`Recorder::aoc_order`](crate::program::Recorder::aoc_order).

use super::aoc_lookup::{Cover, CoverTensors};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Host, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_REFINE: Kernel = Kernel {
    name: "aoc_refine",
    source: include_str!("../../shaders/aoc_refine.wgsl"),
    bindings: &[("step", Access::Step), ("points", Read), ("order", Read), ("keys", Read), ("direction", ReadWrite)],
    reference,
    cost,
};

impl Recorder<'_> {
    pub(super) fn aoc_refine(&mut self, kv_heads: usize, cover: Cover, tensors: CoverTensors) {
        let spec = Spec::default().u32("POINTS", Cover::POINTS).u32("CAPACITY", cover.rows);
        let groups = [Extent::Per(Count::Segments, 1), Extent::Fixed(kv_heads), Extent::Fixed(1)];
        let CoverTensors { points, order, keys, direction, .. } = tensors;
        self.dispatch(&AOC_REFINE, spec, &[points, order, keys, direction], groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [points, order, keys, direction] = tensors else { unreachable!() };
    let [n_points, capacity] = ["POINTS", "CAPACITY"].map(|n| spec.get_u32(n));
    let segment = step.segment as usize;
    for g in 0..order.u32().len() / capacity {
        for s in 0..step.count(Count::Segments) {
            let places = g * capacity + s * segment..g * capacity + (s + 1) * segment;
            let key = |i: usize| keys.f32()[i] as f64;
            let mean = places.clone().map(key).sum::<f64>() / segment as f64;
            let x = |i: usize, p: usize| points.f32()[(g * capacity + order.u32()[i] as usize) * n_points + p] as f64;
            let size = places.clone().map(|i| (key(i) - key(places.start)).abs()).sum::<f64>().max(1e-30);
            for p in 0..n_points {
                let product = places.clone().map(|i| (key(i) - mean) * x(i, p)).sum::<f64>();
                direction.f32_mut()[(g * capacity + s) * n_points + p] = (product / size) as f32;
            }
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [points, order, _, direction] = tensors else { unreachable!() };
    let (n, heads) = (step.rows as usize, order.rows / spec.get_u32("CAPACITY"));
    let read = points.bytes_of(n) + order.bytes_of(n) + 4 * n;
    let written = direction.bytes_of(step.count(Count::Segments));
    Cost::new(heads * read, heads * written, heads * n * spec.get_u32("POINTS") * 2)
}
