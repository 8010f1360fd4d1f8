//! `o[t, h] = sum_s p[s] v[s, g]`, `p = softmax_s(q[t, h] · k[s, g] * scale)`, or of the soft-capped product
//! `cap tanh(q[t, h] · k[s, g] * scale / cap)`, over the positions `s` of the pages listed for t's sequence with `s <= position of t` and, with a window, `s > position of t - window`; `g = h / (H / G)`. A query that sees no key
//! answers 0.
//!
//! Source: Vaswani et al. 2017, arXiv:1706.03762, equation 1; grouped heads: Ainslie et al. 2023, arXiv:2305.13245; soft-cap:
//! Gemma 2, arXiv:2408.00118, section 2.

use rayon::prelude::*;

use super::aoc_lookup::AOC_LOOKUP;
use super::softcap::softcap;
use super::{ADD_DOT, ATTENTION, AttentionDims, AttentionInputs, OF_8, SOFTCAP_OF, Seen, kv_read_spec, part_include};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Capacity, Element, Host, Tensor, TensorDesc};
use crate::program::{Mode, Recorder};

/// See the module.
pub static ATTENTION_PREFILL: Kernel = Kernel {
    name: "attention_prefill",
    source: include_str!("../../shaders/attention_prefill.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("tokens", Read),
        ("tiles", Read),
        ("pages", Read),
        ("queries", Read),
        ("k_pages", Read),
        ("v_pages", Read),
        ("o", ReadWrite),
        ("near", ReadWrite),
    ],
    reference,
    cost,
};

/// How a layer's keys are scored, and which a query sees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// q · k is multiplied by this.
    pub scale: f32,
    /// Positions that a query sees, its own the last; 0: all before.
    pub window: usize,
    /// Soft-cap of the scaled product; 0: none.
    pub cap: f32,
}

impl Recorder<'_> {
    /// `q`, `o`: `[T, H*D]`; `kv`: k and v pages, `[pages * G * PAGE, D]`, of one of [`Element::KV`].
    /// Records attention_prefill for prefill, else attention_decode and attention_merge, and aoc_lookup for the far past.
    pub fn attention(
        &mut self,
        d: AttentionDims,
        inputs: AttentionInputs,
        scores: Scores,
        q: Tensor,
        kv: [Tensor; 2],
        o: Tensor,
    ) {
        self.attention_near(d, inputs, scores, q, kv, o);
        if let Some((cover, far)) = inputs.far.filter(|_| scores.window == 0) {
            let widths = far.layer(self.count(&AOC_LOOKUP));
            self.aoc_lookup(d, cover, widths, scores, inputs.tokens, far, [q, kv[0], kv[1], inputs.near, o]);
        }
    }

    /// Attention to the near past alone.
    pub(super) fn attention_near(
        &mut self,
        d: AttentionDims,
        inputs: AttentionInputs,
        scores: Scores,
        q: Tensor,
        kv: [Tensor; 2],
        o: Tensor,
    ) {
        let element = self.desc(kv[0]).element;
        self.expect(q, Element::F32, d.heads * d.head_dim);
        self.expect(o, Element::F32, d.heads * d.head_dim);
        for pages in kv {
            self.expect(pages, element, d.head_dim);
        }
        let spec = kv_read_spec(Spec::default(), element).include(ADD_DOT).include(SOFTCAP_OF).include(ATTENTION);
        let spec = spec.u32("D4", d.head_dim / 4).u32("H", d.heads).u32("G", d.kv_heads).u32("HEADS", d.heads_each());
        let spec = spec.u32("PAGE", Capacity::PAGE).u32("RUN", AttentionDims::RUN).f32("SCALE", scores.scale);
        let spec = spec.u32("WINDOW", scores.window).f32("CAP", scores.cap);
        let tile = self.tile();
        let tokens = if self.mode() == Mode::Prefill { d.tokens_each(tile) } else { 1 };
        let spec = spec.include(part_include(tile)).u32("TOKENS", tokens);
        // Eight invocations that share by subgroup are a workgroup.
        let spec = if tile.broadcast { spec.include(OF_8) } else { spec.u32("LANES", tile.lanes) };
        let i = inputs;
        if self.mode() != Mode::Prefill {
            self.attention_decode(spec, d, [i.tokens, i.sequences, i.pages, q, kv[0], kv[1], i.parts]);
            return self.attention_merge(d, [i.sequences, i.parts, o, i.near]);
        }
        let [groups, down] = [d.heads / d.heads_each(), AttentionDims::TILE.div_ceil(tokens)].map(Extent::Fixed);
        let extents = [Extent::Per(Count::Tiles, 1), groups, down];
        let tensors = [i.tokens, i.tiles, i.pages, q, kv[0], kv[1], o, i.near];
        self.dispatch(&ATTENTION_PREFILL, spec, &tensors, extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, tiles, pages, q, k_pages, v_pages, o, near] = tensors else { unreachable!() };
    let (heads, d) = (spec.get_u32("H"), 4 * spec.get_u32("D4"));
    let (q, o) = (q.f32(), o.f32_mut());
    for tile in tiles.u32().chunks(4).take(step.n_tiles as usize) {
        let [entry, entries, first, n]: [usize; 4] = std::array::from_fn(|i| tile[i] as usize);
        let list = &pages.u32()[2 * entry..][..2 * entries];
        let answers = o[first * heads * d..][..n * heads * d].par_chunks_mut(d);
        let sums = near.f32_mut()[first * heads * NEAR..][..n * heads * NEAR].par_chunks_mut(NEAR);
        answers.zip(sums).enumerate().for_each(|(i, (o, near))| {
            let (t, h) = (first + i / heads, i % heads);
            let position = tokens.u32()[4 * t + 1] as usize;
            let part = attend(spec, list, position, h, &q[(t * heads + h) * d..][..d], k_pages, v_pages);
            for (o, x) in o.iter_mut().zip(&part.o) {
                *o = if part.l != 0.0 { (x / part.l) as f32 } else { 0.0 };
            }
            part.write_near(near);
        });
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [tokens, tiles, pages, q, k_pages, v_pages, o, near] = tensors else { unreachable!() };
    let [rows, b, n_tiles, listed] =
        [step.n_tokens, step.n_sequences, step.n_tiles, step.max_pages].map(|n| n as usize);
    let (seen, heads) = (Seen::of(spec, step), spec.get_u32("H"));
    let inputs = tokens.bytes_of(rows) + tiles.bytes_of(n_tiles) + pages.bytes_of(b * listed);
    let kv = seen.keys * spec.get_u32("G") * (k_pages.bytes_of(1) + v_pages.bytes_of(1));
    let flops = seen.flops(heads, 4 * spec.get_u32("D4"));
    Cost::new(inputs + q.bytes_of(rows) + kv, o.bytes_of(rows) + near.bytes_of(rows * heads), flops)
}

/// An answer over some of the keys, not normalised: `o = sum_s exp(score_s - m) v[s]`, `l = sum_s exp(score_s - m)`.
pub(super) struct Part {
    pub o: Vec<f64>,
    pub m: f64,
    pub l: f64,
}

/// Numbers of a row of (m, l), behind which aoc_lookup has another.
pub(super) const NEAR: usize = 4;

impl Part {
    /// Leaves (m, l); without a key, the lowest m.
    pub(super) fn write_near(&self, near: &mut [f32]) {
        near[..NEAR].copy_from_slice(&[self.m.max(f64::from(f32::MIN)) as f32, self.l as f32, 0.0, 0.0]);
    }
}

/// Attention of one query over the keys of `list`, (page, first position) pairs, that the query at `position` sees.
pub(super) fn attend(spec: &Spec, list: &[u32], position: usize, h: usize, q: &[f32], k: &Host, v: &Host) -> Part {
    let [d4, heads, kv_heads, page_len, window] = ["D4", "H", "G", "PAGE", "WINDOW"].map(|n| spec.get_u32(n));
    let (d, g) = (4 * d4, h / (heads / kv_heads));
    let [scale, cap] = ["SCALE", "CAP"].map(|n| spec.get_f32(n));
    let rows: Vec<usize> = list
        .chunks(2)
        .flat_map(|entry| {
            let (page, start) = (entry[0] as usize, entry[1] as usize);
            let end = (position + 1).saturating_sub(start).min(page_len);
            let first = if window == 0 { 0 } else { (position + 1).saturating_sub(window) };
            (first.saturating_sub(start)..end).map(move |j| ((page * kv_heads + g) * page_len + j) * d)
        })
        .collect();
    let mut x = vec![0.0; d];
    let mut score = |row: &usize| {
        k.kv_row(*row, &mut x);
        let product = q.iter().zip(&x).map(|(q, k)| *q as f64 * *k as f64).sum::<f64>() * scale;
        if cap > 0.0 { softcap(product, cap) } else { product }
    };
    let scores: Vec<f64> = rows.iter().map(&mut score).collect();
    let m = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (mut o, mut l) = (vec![0.0; d], 0.0);
    for (row, score) in rows.iter().zip(&scores) {
        let p = (score - m).exp();
        l += p;
        v.kv_row(*row, &mut x);
        for (o, x) in o.iter_mut().zip(&x) {
            *o += p * *x as f64;
        }
    }
    Part { o, m, l }
}
