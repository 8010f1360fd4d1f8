//! Rotary embedding of q and k, with k and v written to their page slots.
//!
//! Source: Su et al. 2021, arXiv:2104.09864, equation 34; pairs are interleaved, as in the paper and in GGUF files. The
//! angles are an input (`rope`), so that every scaling of them is the host's affair and computed in f64.

use super::{AttentionDims, AttentionInputs, WORKGROUP, kv_include};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Capacity, Element, Host, Tensor};
use crate::program::Recorder;

/// See the module.
pub static ROPE_STORE: Kernel = Kernel {
    name: "rope_store",
    source: include_str!("../../shaders/rope_store.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("tokens", Read),
        ("rope", Read),
        ("k", Read),
        ("v", Read),
        ("q", ReadWrite),
        ("k_pages", ReadWrite),
        ("v_pages", ReadWrite),
    ],
    reference,
};

impl Recorder<'_> {
    /// `rope`: `[context, D]`, for each position and pair its cos and sin; `q`: `[T, H*D]`; `k`, `v`: `[T, G*D]`;
    /// `kv`: k and v pages, `[pages * G * PAGE, D]`, f16 or f32.
    pub fn rope_store(
        &mut self,
        d: AttentionDims,
        inputs: AttentionInputs,
        rope: Tensor,
        qkv: [Tensor; 3],
        kv: [Tensor; 2],
    ) {
        let [q, k, v] = qkv;
        let element = self.desc(kv[0]).element;
        self.expect(rope, Element::F32, d.head_dim);
        self.expect(q, Element::F32, d.heads * d.head_dim);
        self.expect(k, Element::F32, d.kv_heads * d.head_dim);
        self.expect(v, Element::F32, d.kv_heads * d.head_dim);
        for pages in kv {
            self.expect(pages, element, d.head_dim);
        }
        let spec = Spec::default().include(kv_include(element)).u32("D4", d.head_dim / 4).u32("H", d.heads);
        let spec = spec.u32("G", d.kv_heads).u32("PAGE", Capacity::PAGE);
        let across = ((d.heads + 2 * d.kv_heads) * d.head_dim / 4).div_ceil(WORKGROUP);
        let extents = [Extent::Fixed(across), Extent::Per(Count::Tokens, 1), Extent::Fixed(1)];
        self.dispatch(&ROPE_STORE, spec, &[inputs.tokens, rope, k, v, q, kv[0], kv[1]], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, rope, k, v, q, k_pages, v_pages] = tensors else { unreachable!() };
    let [d, heads, kv_heads, page] = ["D4", "H", "G", "PAGE"].map(|n| spec.get_u32(n));
    let d = 4 * d;
    let rope = rope.f32();
    let rotate = |position: usize, x: &[f32]| -> Vec<f32> {
        let turns = rope[position * d..][..d].chunks(2);
        x.chunks(2)
            .zip(turns)
            .flat_map(|(x, turn)| {
                let [a, b, cos, sin] = [x[0], x[1], turn[0], turn[1]].map(f64::from);
                [(a * cos - b * sin) as f32, (a * sin + b * cos) as f32]
            })
            .collect()
    };
    for (t, token) in tokens.u32().chunks(4).take(step.n_tokens as usize).enumerate() {
        let (position, slot) = (token[1] as usize, token[2] as usize);
        for h in 0..heads {
            let q = &mut q.f32_mut()[(t * heads + h) * d..][..d];
            q.copy_from_slice(&rotate(position, q));
        }
        for g in 0..kv_heads {
            let from = (t * kv_heads + g) * d;
            let to = ((slot / page * kv_heads + g) * page + slot % page) * d;
            for (i, x) in rotate(position, &k.f32()[from..][..d]).into_iter().enumerate() {
                k_pages.set_kv(to + i, x);
                v_pages.set_kv(to + i, v.f32()[from + i]);
            }
        }
    }
}
