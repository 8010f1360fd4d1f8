//! `q[t, h] = turn(Wq x + bq)`, `k[t, g] = turn(Wk x + bk)`, `v[t, g] = Wv x + bv` of `x` or of `x` normalised, where `turn` rotates
//! pair p of the dims of a head, if it is one that turns, by the angle of the position; k and v are written to their page slots. The dims of a head of q
//! and of k stand in the order of the pairs: their products are the same.
//!
//! Source: Su et al. 2021, arXiv:2104.09864, equation 34.

use super::linear::{Norm, normed_cost, normed_rows, times};
use super::{AttentionDims, AttentionInputs, Rope, written_row};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc, Weight, WeightStack, stride};
use crate::program::Recorder;

/// See the module.
pub static LINEAR_ROPE: Kernel = Kernel {
    name: "linear_rope",
    source: include_str!("../../shaders/linear_rope.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("tokens", Read),
        ("x", Read),
        ("vectors", Read),
        ("w", Read),
        ("rope", Read),
        ("q", ReadWrite),
        ("k_pages", ReadWrite),
        ("v_pages", ReadWrite),
    ],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `x`: `[T, K]`; `weights`: the pairs of dims of q, of k and of v, one after the other, `[(H + 2G) D, K]` in all;
    /// `vectors`: the norm's gains and, where there are biases, those of all pairs behind them; `q`: `[T, H*D]`; `kv`: k and v
    /// pages, `[pages * G * PAGE, D]`, f16 or f32, or their rows for [`kv_store`](Recorder::kv_store), `[T, G*D]`.
    #[allow(clippy::too_many_arguments)]
    pub fn linear_rope(
        &mut self,
        d: AttentionDims,
        inputs: AttentionInputs,
        x: Tensor,
        norm: Norm,
        weights: &[Weight],
        vectors: Tensor,
        rope: Rope,
        q: Tensor,
        kv: [Tensor; 2],
    ) {
        let k = self.desc(x).cols;
        let heads = d.heads + 2 * d.kv_heads;
        if rope.dims > 0 {
            self.expect(rope.table, Element::F32, rope.dims);
        }
        self.expect(q, Element::F32, d.heads * d.head_dim);
        let has_bias = self.desc(vectors).cols > k;
        self.expect(vectors, Element::F32, if has_bias { stride(k) + heads * d.head_dim } else { k });
        let (x, spec) = self.normed(x, norm);
        let all = heads * d.head_dim / 2;
        let rows: usize = weights.iter().map(|w| w.rows).sum();
        assert_eq!(rows, 2 * all, "linear_rope: rows of all weights");
        let parts: Vec<_> = weights.iter().flat_map(|w| self.pairs(w)).collect();
        let mut pair0 = 0;
        for (part, pairs) in parts {
            let (tiled, [across, down]) = self.tiled(part, Count::Tokens, self.tile().lanes, spec.clone());
            let spec = self.kv_write_spec(tiled, d, kv).u32("D2", d.head_dim / 2).u32("R2", rope.dims / 2);
            let spec = spec.u32("H", d.heads).u32("PAIRS", pairs).u32("PAIR0", pair0).u32("BIAS", has_bias as usize);
            let tensors = [inputs.tokens, x, vectors, part, rope.table, q, kv[0], kv[1]];
            self.dispatch(&LINEAR_ROPE, spec, &tensors, [across, down, Extent::Fixed(1)]);
            pair0 += pairs;
        }
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, x, vectors, w, rope, q, k_pages, v_pages] = tensors else { unreachable!() };
    let [d2, r2, heads, kv_heads] = ["D2", "R2", "H", "G"].map(|name| spec.get_u32(name));
    let [pairs, pair0, k, bias] = ["PAIRS", "PAIR0", "K", "BIAS"].map(|name| spec.get_u32(name));
    let x = normed_rows(x, spec, step.n_tokens as usize, vectors.f32());
    let products = times(w.weight(), &x);
    for i in 0..pairs {
        let ([row, second], pair) = (WeightStack::pair(i), pair0 + i);
        let (head, p) = (pair / d2, pair % d2);
        for (t, token) in tokens.u32().chunks(4).take(x.len()).enumerate() {
            let (position, slot) = (token[1] as usize, token[2] as usize);
            let biases = [0, 1].map(|i| if bias == 1 { vectors.f32()[stride(k) + 2 * pair + i] as f64 } else { 0.0 });
            let [a, b] = [products[row][t] + biases[0], products[second][t] + biases[1]];
            let turned = if head < heads + kv_heads && p < r2 {
                let [cos, sin] = [0, 1].map(|i| rope.f32()[2 * (position * r2 + p) + i] as f64);
                [a * cos - b * sin, a * sin + b * cos]
            } else {
                [a, b]
            };
            let g = head.saturating_sub(heads) % kv_heads;
            let to = 2 * (written_row(spec, t, g, slot) * d2 + p);
            for (i, value) in turned.into_iter().enumerate() {
                match head {
                    _ if head < heads => q.f32_mut()[2 * ((t * heads + head) * d2 + p) + i] = value as f32,
                    _ if head < heads + kv_heads => k_pages.set_kv(to + i, value as f32),
                    _ => v_pages.set_kv(to + i, value as f32),
                }
            }
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [tokens, x, _, w, rope, _, kv, _] = tensors else { unreachable!() };
    let [d2, r2, heads, kv_heads] = ["D2", "R2", "H", "G"].map(|name| spec.get_u32(name));
    let [pairs, pair0, bias] = ["PAIRS", "PAIR0", "BIAS"].map(|name| spec.get_u32(name));
    let rows = step.n_tokens as usize;
    let within = |end: usize| (pair0 + pairs).min(end).saturating_sub(pair0);
    let (of_q, turning) = (within(heads * d2), within((heads + kv_heads) * d2) * r2 / d2);
    let angles = if turning > 0 { rope.bytes_of(rows) } else { 0 };
    let read = tokens.bytes_of(rows) + angles + bias * 8 * pairs;
    let written = rows * (8 * of_q + (pairs - of_q) * 2 * kv.bytes_of(1) / kv.cols);
    normed_cost(spec, rows, x, w, 2 * pairs) + Cost::new(read, written, rows * (6 * turning + 2 * bias * pairs))
}
