//! `q[t, h]` = the query of head h at the position of token t that aoc_lookup kept, for trying widths with.

use super::AttentionDims;
use super::aoc_lookup::{Cover, FarInputs, Kept, kept_at, kept_spec, kv_spec};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_RECALL: Kernel = Kernel {
    name: "aoc_recall",
    source: include_str!("../../shaders/aoc_recall.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("tokens", Read),
        ("far", Read),
        ("lists", Read),
        ("k_pages", Read),
        ("v_pages", Read),
        ("q", ReadWrite),
    ],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `kv`: k and v pages of a layer; `q`: `[T, H*D]`. Tokens are at positions whose queries were kept for trials.
    pub fn aoc_recall(
        &mut self,
        d: AttentionDims,
        cover: Cover,
        tokens: Tensor,
        far: FarInputs,
        kv: [Tensor; 2],
        q: Tensor,
    ) {
        self.expect(q, Element::F32, d.heads * d.head_dim);
        let spec = kept_spec(kv_spec(d, self.desc(kv[0]).element));
        let spec = spec.u32("H", d.heads).u32("WIDTHS", cover.widths());
        let [across, down] = [(d.head_dim / 4).div_ceil(16), d.heads.div_ceil(4)].map(Extent::Fixed);
        let groups = [across, down, Extent::Per(Count::Tokens, 1)];
        self.dispatch(&AOC_RECALL, spec, &[tokens, far.far, far.lists, kv[0], kv[1], q], groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, far, lists, k_pages, v_pages, q] = tensors else { unreachable!() };
    let [d4, heads, kv_heads, widths] = ["D4", "H", "G", "WIDTHS"].map(|n| spec.get_u32(n));
    let (d, group) = (4 * d4, heads / kv_heads);
    for (t, token) in tokens.u32().chunks(4).take(step.n_tokens as usize).enumerate() {
        let list = far.u32()[4 * token[3] as usize + 3] as usize;
        let Some(Kept::Trials(turn)) = Cover::kept(token[1] as usize) else { unreachable!("a query kept for trials") };
        for h in 0..heads {
            let item = Cover::POINTS + turn * group + h % group;
            let (half, at) = kept_at(spec, &lists.u32()[list + widths..], h / group, item);
            let kv = if half == 1 { &*v_pages } else { &*k_pages };
            kv.kv_row(at, &mut q.f32_mut()[(t * heads + h) * d..][..d]);
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [tokens, far, _, k_pages, _, q] = tensors else { unreachable!() };
    let (t, heads) = (step.n_tokens as usize, spec.get_u32("H"));
    let inputs = tokens.bytes_of(t) + far.bytes_of(step.n_sequences as usize) + 4 * t;
    Cost::new(inputs + t * heads * k_pages.bytes_of(1), q.bytes_of(t), 0)
}
