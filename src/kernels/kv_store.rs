//! Keys and values of a step's tokens, rounded to [`Blocks`](crate::memory::Blocks) in their page slots.
//!
//! Source: ggml's `quantize_row_q8_0_ref` and `quantize_row_q4_0_ref`.

use super::{AttentionDims, AttentionInputs, KV_PAGED, WORKGROUP, blocks_spec, kv_put_spec, kv_row};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Capacity, Element, Host, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static KV_STORE: Kernel = Kernel {
    name: "kv_store",
    source: include_str!("../../shaders/kv_store.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("tokens", Read),
        ("k", Read),
        ("v", Read),
        ("k_pages", ReadWrite),
        ("v_pages", ReadWrite),
    ],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `rows`: k and v, `[T, G*D]`; `pages`: k and v pages, `[pages * G * PAGE, D]`, q8_0 or q4_0.
    pub fn kv_store(&mut self, d: AttentionDims, inputs: AttentionInputs, rows: [Tensor; 2], pages: [Tensor; 2]) {
        let element = self.desc(pages[0]).element;
        for (rows, pages) in rows.into_iter().zip(pages) {
            self.expect(rows, Element::F32, d.kv_heads * d.head_dim);
            self.expect(pages, element, d.head_dim);
        }
        let spec = kv_put_spec(blocks_spec(Spec::default(), element), element).include(KV_PAGED);
        let spec = spec.u32("D4", d.head_dim / 4).u32("G", d.kv_heads).u32("PAGE", Capacity::PAGE);
        let across = (2 * d.kv_heads * d.head_dim.div_ceil(64)).div_ceil(WORKGROUP);
        let extents = [Extent::Fixed(across), Extent::Per(Count::Tokens, 1), Extent::Fixed(1)];
        self.dispatch(&KV_STORE, spec, &[inputs.tokens, rows[0], rows[1], pages[0], pages[1]], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, k, v, k_pages, v_pages] = tensors else { unreachable!() };
    let [d4, heads, page] = ["D4", "G", "PAGE"].map(|n| spec.get_u32(n));
    let d = 4 * d4;
    for (t, token) in tokens.u32().chunks(4).take(step.n_tokens as usize).enumerate() {
        let slot = token[2] as usize;
        for g in 0..heads {
            let (from, to) = ((t * heads + g) * d, kv_row(spec, (slot / page) as u32, g, slot) * d);
            k_pages.set_kv_row(to, &k.f32()[from..from + d]);
            v_pages.set_kv_row(to, &v.f32()[from..from + d]);
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [tokens, k, v, k_pages, v_pages] = tensors else { unreachable!() };
    let [d4, heads] = ["D4", "G"].map(|n| spec.get_u32(n));
    let rows = step.n_tokens as usize;
    let read = tokens.bytes_of(rows) + k.bytes_of(rows) + v.bytes_of(rows);
    // Each element is compared with two extremes, scaled and rounded.
    Cost::new(read, rows * heads * (k_pages.bytes_of(1) + v_pages.bytes_of(1)), rows * 2 * heads * 16 * d4)
}
