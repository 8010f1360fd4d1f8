//! Sorts the rows of each segment of a tree by their keys, NaN last or first, from runs that are sorted: the halves are the segments of
//! the next depth, whose rows are as many by construction.

use super::WORKGROUP;
use super::aoc_lookup::{Cover, CoverTensors};
use super::aoc_runs::RUN;
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Host, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_ORDER: Kernel = Kernel {
    name: "aoc_order",
    source: include_str!("../../shaders/aoc_order.wgsl"),
    bindings: &[("step", Access::Step), ("sorted", Read), ("before", Read), ("order", ReadWrite)],
    reference,
    cost,
};

/// Further steps of the power iteration.
const REFINED: usize = 2;

impl Recorder<'_> {
    /// Bisects the segments of the step: along the direction of largest variance of their rows' points.
    pub fn aoc_split(&mut self, kv_heads: usize, cover: Cover, tensors: CoverTensors) {
        self.aoc_direction(kv_heads, cover, tensors);
        self.aoc_keys(kv_heads, cover, tensors);
        for _ in 0..REFINED {
            self.aoc_refine(kv_heads, cover, tensors);
            self.aoc_keys(kv_heads, cover, tensors);
        }
        self.aoc_runs(kv_heads, cover, tensors);
        self.aoc_order(kv_heads, cover, tensors);
    }

    fn aoc_order(&mut self, kv_heads: usize, cover: Cover, tensors: CoverTensors) {
        let spec = Spec::default().u32("CAPACITY", cover.rows).u32("RUN", RUN);
        let groups = [Extent::Per(Count::Rows, WORKGROUP), Extent::Fixed(kv_heads), Extent::Fixed(1)];
        self.dispatch(&AOC_ORDER, spec, &[tensors.sorted, tensors.before, tensors.order], groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [sorted, before, order] = tensors else { unreachable!() };
    let (capacity, segment) = (spec.get_u32("CAPACITY"), step.segment as usize);
    for g in 0..order.u32().len() / capacity {
        for s in 0..step.count(Count::Segments) {
            let first = g * capacity + s * segment;
            let mut places: Vec<_> = (first..first + segment).collect();
            places.sort_by(|a, b| sorted.u32()[*a].cmp(&sorted.u32()[*b]));
            for (i, place) in places.into_iter().enumerate() {
                order.u32_mut()[first + i] = before.u32()[place];
            }
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [sorted, before, order] = tensors else { unreachable!() };
    let (n, heads) = (step.rows as usize, order.rows / spec.get_u32("CAPACITY"));
    let segment = step.segment as usize;
    let run = spec.get_u32("RUN").min(segment);
    let compared = (segment / run - 1) * (1 + run.ilog2() as usize);
    Cost::new(heads * (sorted.bytes_of(n) + before.bytes_of(n)), heads * order.bytes_of(n), heads * n * compared)
}
