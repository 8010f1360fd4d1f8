//! Copies keys and values of a tree's rows to pages of its own, in its order: row i of head g from page slot
//! `source[order[g, i]]`.

use super::aoc_lookup::{Cover, CoverTensors, slots_spec};
use super::{AttentionDims, kv_copy_spec, kv_row};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Host, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_GATHER: Kernel = Kernel {
    name: "aoc_gather",
    source: include_str!("../../shaders/aoc_gather.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("source", Read),
        ("order", Read),
        ("pages", Read),
        ("k_pages", ReadWrite),
        ("v_pages", ReadWrite),
    ],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `kv`: k and v pages of a layer.
    pub fn aoc_gather(&mut self, d: AttentionDims, cover: Cover, tensors: CoverTensors, kv: [Tensor; 2]) {
        let element = self.desc(kv[0]).element;
        let spec = kv_copy_spec(slots_spec(d), element).u32("CAPACITY", cover.rows);
        let units = if element.is_blocks() { element.row_bytes(d.head_dim) / 4 } else { d.head_dim / 4 };
        let groups = [Extent::Fixed(units.div_ceil(16)), Extent::Per(Count::Rows, 4), Extent::Fixed(d.kv_heads)];
        let CoverTensors { source, order, pages, .. } = tensors;
        self.dispatch(&AOC_GATHER, spec, &[source, order, pages, kv[0], kv[1]], groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [source, order, pages, k_pages, v_pages] = tensors else { unreachable!() };
    let [d4, heads, page, capacity] = ["D4", "G", "PAGE", "CAPACITY"].map(|n| spec.get_u32(n));
    let mut row = vec![0.0; 4 * d4];
    for kv in [k_pages, v_pages] {
        for g in 0..heads {
            for i in 0..step.rows as usize {
                let from = source.u32()[order.u32()[g * capacity + i] as usize] as usize;
                let from = kv_row(spec, (from / page) as u32, g, from) * 4 * d4;
                let to = kv_row(spec, pages.u32()[i / page], g, i) * 4 * d4;
                // Rounding to blocks what was in blocks changes nothing.
                kv.kv_row(from, &mut row);
                kv.set_kv_row(to, &row);
            }
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [source, order, _, k_pages, _] = tensors else { unreachable!() };
    let (n, heads) = (step.rows as usize, spec.get_u32("G"));
    let rows = 2 * heads * n * k_pages.bytes_of(1);
    Cost::new(source.bytes_of(n) + heads * order.bytes_of(n) + rows, rows, 0)
}
