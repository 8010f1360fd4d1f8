//! Keys and values of a step's tokens, rounded to [`Blocks`](crate::memory::Blocks) in their page slots. Before that keys and, in place,
//! queries are turned by the Hadamard matrix of each R dims, `y_i = R^-1/2 sum_j (-1)^popcount(i & j) x_j`, R the largest power of two up
//! to 32 that divides D: their products stay, and the few large dims that keys have are spread over a block.
//!
//! Source: ggml's `quantize_row_q8_0_ref` and `quantize_row_q4_0_ref`; the rotation: Ashkboos et al. 2024, arXiv:2404.00456, section 4.

use super::{AttentionDims, AttentionInputs, KV_PAGED, SLOTS, WORKGROUP, blocks_spec, kv_put_spec, kv_row};
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
        ("q", ReadWrite),
        ("k_pages", ReadWrite),
        ("v_pages", ReadWrite),
    ],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `rows`: k and v, `[T, G*D]`; `q`: `[T, H*D]`, turned in place; `pages`: k and v pages, `[pages * G * PAGE, D]`, q8_0 or q4_0.
    pub fn kv_store(
        &mut self,
        d: AttentionDims,
        inputs: AttentionInputs,
        rows: [Tensor; 2],
        q: Tensor,
        pages: [Tensor; 2],
    ) {
        let element = self.desc(pages[0]).element;
        self.expect(q, Element::F32, d.heads * d.head_dim);
        for (rows, pages) in rows.into_iter().zip(pages) {
            self.expect(rows, Element::F32, d.kv_heads * d.head_dim);
            self.expect(pages, element, d.head_dim);
        }
        let spec = kv_put_spec(blocks_spec(Spec::default(), element), element).include(SLOTS).include(KV_PAGED);
        let turned = 1 << d.head_dim.trailing_zeros().min(5);
        let spec = spec.u32("D4", d.head_dim / 4).u32("R4", turned / 4).u32("H", d.heads).u32("G", d.kv_heads);
        let spec = spec.u32("PAGE", Capacity::PAGE);
        let across = ((d.heads + 2 * d.kv_heads) * d.head_dim.div_ceil(64)).div_ceil(WORKGROUP);
        let extents = [Extent::Fixed(across), Extent::Per(Count::Tokens, 1), Extent::Fixed(1)];
        self.dispatch(&KV_STORE, spec, &[inputs.tokens, rows[0], rows[1], q, pages[0], pages[1]], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, k, v, q, k_pages, v_pages] = tensors else { unreachable!() };
    let [d4, r4, heads, kv_heads, page] = ["D4", "R4", "H", "G", "PAGE"].map(|n| spec.get_u32(n));
    let (d, r) = (4 * d4, 4 * r4);
    let turned = |x: &[f32]| -> Vec<f32> {
        let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
        let dim = |x: &[f32], i| x.iter().enumerate().map(|(j, x)| sign(i, j) * f64::from(*x)).sum::<f64>();
        x.chunks(r).flat_map(|x| (0..r).map(|i| (dim(x, i) / (r as f64).sqrt()) as f32)).collect()
    };
    for (t, token) in tokens.u32().chunks(4).take(step.n_tokens as usize).enumerate() {
        for q in q.f32_mut()[t * heads * d..][..heads * d].chunks_mut(d) {
            q.copy_from_slice(&turned(q));
        }
        let slot = token[2] as usize;
        for g in 0..kv_heads {
            let (from, to) = ((t * kv_heads + g) * d, kv_row(spec, (slot / page) as u32, g, slot) * d);
            k_pages.set_kv_row(to, &turned(&k.f32()[from..from + d]));
            v_pages.set_kv_row(to, &v.f32()[from..from + d]);
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [tokens, k, v, q, k_pages, v_pages] = tensors else { unreachable!() };
    let [d4, r4, heads, kv_heads] = ["D4", "R4", "H", "G"].map(|n| spec.get_u32(n));
    let rows = step.n_tokens as usize;
    let read = tokens.bytes_of(rows) + k.bytes_of(rows) + v.bytes_of(rows) + q.bytes_of(rows);
    let stored = rows * kv_heads * (k_pages.bytes_of(1) + v_pages.bytes_of(1));
    // A butterfly for each power of two and a scale; two extremes, a scale and a rounding.
    let turning = rows * (heads + kv_heads) * 4 * d4 * (3 + r4.ilog2() as usize);
    Cost::new(read, q.bytes_of(rows) + stored, turning + rows * 2 * kv_heads * 16 * d4)
}
