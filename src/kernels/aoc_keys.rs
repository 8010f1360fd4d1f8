//! `keys[g, i] = x · direction`, x the coordinates of the row at place i of its segment. Recorded by
//! [`Recorder::aoc_order`](crate::program::Recorder::aoc_order).

use super::aoc_lookup::{Cover, CoverTensors};
use super::{ADD_DOT, WORKGROUP};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Host, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_KEYS: Kernel = Kernel {
    name: "aoc_keys",
    source: include_str!("../../shaders/aoc_keys.wgsl"),
    bindings: &[("step", Access::Step), ("points", Read), ("direction", Read), ("order", Read), ("keys", ReadWrite)],
    reference,
    cost,
};

/// Places of one invocation: no more than a segment has.
const EACH: usize = 4;

impl Recorder<'_> {
    pub(super) fn aoc_keys(&mut self, kv_heads: usize, cover: Cover, tensors: CoverTensors) {
        let spec = Spec::default().include(ADD_DOT).u32("POINTS", Cover::POINTS).u32("CAPACITY", cover.rows);
        let spec = spec.u32("EACH", EACH);
        let groups = [Extent::Per(Count::Rows, EACH * WORKGROUP), Extent::Fixed(kv_heads), Extent::Fixed(1)];
        let CoverTensors { points, direction, order, keys, .. } = tensors;
        self.dispatch(&AOC_KEYS, spec, &[points, direction, order, keys], groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [points, direction, order, keys] = tensors else { unreachable!() };
    let [n_points, capacity] = ["POINTS", "CAPACITY"].map(|n| spec.get_u32(n));
    for g in 0..order.u32().len() / capacity {
        for i in 0..step.rows as usize {
            let row = order.u32()[g * capacity + i];
            let x = &points.f32()[(g * capacity + row as usize) * n_points..][..n_points];
            let along = &direction.f32()[(g * capacity + i / step.segment as usize) * n_points..];
            keys.f32_mut()[g * capacity + i] =
                x.iter().zip(along).map(|(x, c)| *x as f64 * *c as f64).sum::<f64>() as f32;
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [points, direction, order, _] = tensors else { unreachable!() };
    let (n, heads) = (step.rows as usize, order.rows / spec.get_u32("CAPACITY"));
    let read = points.bytes_of(n) + direction.bytes_of(step.count(Count::Segments)) + order.bytes_of(n);
    Cost::new(heads * read, heads * 4 * n, heads * n * spec.get_u32("POINTS") * 2)
}
