//! The anchors of one depth of a tree: mean key and mean value of the rows of a leaf, or of the two children of any other node, which
//! stand for as many rows each. Nodes are numbered as in a heap: 1 is the root, the children of i are 2i and 2i + 1.

use super::aoc_lookup::{Cover, CoverTensors, kv_spec};
use super::{AttentionDims, WORKGROUP, kv_put_spec, kv_row};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Host, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_NODES: Kernel = Kernel {
    name: "aoc_nodes",
    source: include_str!("../../shaders/aoc_nodes.wgsl"),
    bindings: &[("step", Access::Step), ("pages", Read), ("k_pages", ReadWrite), ("v_pages", ReadWrite)],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `kv`: k and v pages of a layer. The step's segment is the number of nodes of the depth; the depth below is there.
    pub fn aoc_nodes(&mut self, d: AttentionDims, tensors: CoverTensors, kv: [Tensor; 2]) {
        let element = self.desc(kv[0]).element;
        let spec = kv_put_spec(kv_spec(d, element), element).u32("LEAF", Cover::LEAF);
        let pieces = Extent::Fixed(2 * d.head_dim.div_ceil(64));
        let groups = [Extent::Per(Count::Segment, WORKGROUP), pieces, Extent::Fixed(d.kv_heads)];
        self.dispatch(&AOC_NODES, spec, &[tensors.pages, kv[0], kv[1]], groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [pages, k_pages, v_pages] = tensors else { unreachable!() };
    let [d4, heads, page, leaf] = ["D4", "G", "PAGE", "LEAF"].map(|n| spec.get_u32(n));
    let (rows, first) = (step.rows as usize, step.segment as usize);
    let (row_pages, node_pages) = pages.u32().split_at(rows / page);
    for kv in [k_pages, v_pages] {
        for g in 0..heads {
            for node in first..2 * first {
                let (children, from) = match first * leaf == rows {
                    true => ((node - first) * leaf..(node - first + 1) * leaf, row_pages),
                    false => (2 * node..2 * node + 2, node_pages),
                };
                let bases: Vec<_> = children.map(|c| kv_row(spec, from[c / page], g, c) * 4 * d4).collect();
                let to = kv_row(spec, node_pages[node / page], g, node) * 4 * d4;
                let mean = |j| bases.iter().map(|base| f64::from(kv.kv(base + j))).sum::<f64>() / bases.len() as f64;
                let mean: Vec<_> = (0..4 * d4).map(|j| mean(j) as f32).collect();
                kv.set_kv_row(to, &mean);
            }
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [pages, k_pages, _] = tensors else { unreachable!() };
    let [d4, heads, leaf] = ["D4", "G", "LEAF"].map(|n| spec.get_u32(n));
    let (rows, nodes) = (step.rows as usize, step.segment as usize);
    let children = if nodes * leaf == rows { rows } else { 2 * nodes };
    let row = 2 * heads * k_pages.bytes_of(1);
    Cost::new(pages.bytes_of(nodes.div_ceil(16)) + children * row, nodes * row, 2 * heads * children * 4 * d4)
}
