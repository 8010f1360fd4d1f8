//! Sorts each run of [`RUN`] places of a tree's rows, or each segment where it has fewer, by keys, NaN last or first. Recorded by
//! [`Recorder::aoc_order`](crate::program::Recorder::aoc_order).

use super::WORKGROUP;
use super::aoc_lookup::{Cover, CoverTensors, ORDERED};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Host, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_RUNS: Kernel = Kernel {
    name: "aoc_runs",
    source: include_str!("../../shaders/aoc_runs.wgsl"),
    bindings: &[("step", Access::Step), ("keys", Read), ("order", Read), ("sorted", ReadWrite), ("before", ReadWrite)],
    reference,
    cost,
};

/// Places of a run: a power of two, about the square root of the rows of a large segment, so that sorting runs and merging them take alike.
pub(super) const RUN: usize = 64;

impl Recorder<'_> {
    pub(super) fn aoc_runs(&mut self, kv_heads: usize, cover: Cover, tensors: CoverTensors) {
        let spec = Spec::default().include(ORDERED).u32("CAPACITY", cover.rows).u32("RUN", RUN);
        let groups = [Extent::Per(Count::Rows, WORKGROUP), Extent::Fixed(kv_heads), Extent::Fixed(1)];
        let CoverTensors { keys, order, sorted, before, .. } = tensors;
        self.dispatch(&AOC_RUNS, spec, &[keys, order, sorted, before], groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [keys, order, sorted, before] = tensors else { unreachable!() };
    let run = spec.get_u32("RUN").min(step.segment as usize);
    for head in (0..order.u32().len()).step_by(spec.get_u32("CAPACITY")) {
        for first in (head..head + step.rows as usize).step_by(run) {
            let mut places: Vec<_> = (first..first + run).collect();
            places.sort_by(|a, b| keys.f32()[*a].total_cmp(&keys.f32()[*b]));
            for (i, place) in places.into_iter().enumerate() {
                sorted.u32_mut()[first + i] = ordered(keys.f32()[place]);
                before.u32_mut()[first + i] = order.u32()[place];
            }
        }
    }
}

/// As the shader of this name.
fn ordered(x: f32) -> u32 {
    let bits = x.to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [_, order, sorted, before] = tensors else { unreachable!() };
    let (n, heads) = (step.rows as usize, order.rows / spec.get_u32("CAPACITY"));
    let run = spec.get_u32("RUN").min(step.segment as usize);
    Cost::new(heads * (4 * n + order.bytes_of(n)), heads * (sorted.bytes_of(n) + before.bytes_of(n)), heads * n * run)
}
