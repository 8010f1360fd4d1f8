//! The parts of attention of one token of each sequence over splits of its page list:
//! `o = sum_s exp(score_s - m) v[s]`, `m = max_s score_s`, `l = sum_s exp(score_s - m)`, `score_s = q · k[s] * scale`.
//! A split none of whose keys are seen has `l = 0`. Recorded by
//! [`Recorder::attention`](crate::program::Recorder::attention).
//!
//! Source: Dao et al. 2023, "Flash-Decoding for long-context inference"; the (o, m, l) form: Milakov and Gimelshein 2018,
//! arXiv:1805.02867, algorithm 3.

use rayon::prelude::*;

use super::attention_prefill::attend;
use super::{AttentionDims, WORKGROUP, splits};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor};
use crate::program::Recorder;

/// See the module.
pub static ATTENTION_DECODE: Kernel = Kernel {
    name: "attention_decode",
    source: include_str!("../../shaders/attention_decode.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("tokens", Read),
        ("sequences", Read),
        ("pages", Read),
        ("q", Read),
        ("k_pages", Read),
        ("v_pages", Read),
        ("parts", ReadWrite),
    ],
    reference,
};

impl Recorder<'_> {
    /// `tensors`: tokens, sequences, pages, q, k pages, v pages, and the parts `[B * SPLITS * H, D + 4]`.
    pub(super) fn attention_decode(&mut self, spec: Spec, d: AttentionDims, tensors: [Tensor; 7]) {
        self.expect(tensors[6], Element::F32, d.head_dim + 4);
        let spec = spec.u32("SPLITS", splits(self.capacity()));
        let extents =
            [Extent::Per(Count::Pages, WORKGROUP), Extent::Fixed(d.kv_heads), Extent::Per(Count::Sequences, 1)];
        self.dispatch(&ATTENTION_DECODE, spec, &tensors, extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, sequences, pages, q, k_pages, v_pages, parts] = tensors else { unreachable!() };
    let [d4, heads, splits] = ["D4", "H", "SPLITS"].map(|n| spec.get_u32(n));
    let d = 4 * d4;
    for (b, sequence) in sequences.u32().chunks(4).take(step.n_sequences as usize).enumerate() {
        let [first, entries, t] = [0, 1, 2].map(|i| sequence[i] as usize);
        let each = entries.div_ceil(splits).max(1);
        let list = &pages.u32()[2 * first..][..2 * entries];
        let position = tokens.u32()[4 * t + 1] as usize;
        let parts = &mut parts.f32_mut()[b * splits * heads * (d + 4)..][..entries.div_ceil(each) * heads * (d + 4)];
        parts.par_chunks_mut(d + 4).enumerate().for_each(|(i, to)| {
            let (split, h) = (i / heads, i % heads);
            let list = &list[2 * split * each..2 * entries.min((split + 1) * each)];
            let part = attend(spec, list, position, h, &q.f32()[(t * heads + h) * d..][..d], k_pages, v_pages);
            for (to, x) in to.iter_mut().zip(&part.o) {
                *to = *x as f32;
            }
            to[d..].copy_from_slice(&[part.m.max(f32::MIN as f64) as f32, part.l as f32, 0.0, 0.0]);
        });
    }
}
