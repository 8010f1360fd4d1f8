//! The parts of attention of one token of each sequence over each run of [`AttentionDims::RUN`] pages of its list:
//! `o = sum_s exp(score_s - m) v[s]`, `m = max_s score_s`, `l = sum_s exp(score_s - m)`, `score_s = q · k[s] * scale`, soft-capped
//! where there is a cap as in attention_prefill.
//! A run none of whose keys are seen has `l = 0`. Recorded by
//! [`Recorder::attention`](crate::program::Recorder::attention).
//!
//! Source: Dao et al. 2023, "Flash-Decoding for long-context inference"; the (o, m, l) form: Milakov and Gimelshein 2018,
//! arXiv:1805.02867, algorithm 3.

use rayon::prelude::*;

use super::attention_prefill::attend;
use super::{AttentionDims, Seen};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Tensor, TensorDesc};
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
        ("queries", Read),
        ("k_pages", Read),
        ("v_pages", Read),
        ("parts", ReadWrite),
    ],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `tensors`: tokens, sequences, pages, q, k pages, v pages, and the parts `[B * RUNS * H, D + 4]`.
    pub(super) fn attention_decode(&mut self, spec: Spec, d: AttentionDims, tensors: [Tensor; 7]) {
        self.expect(tensors[6], Element::F32, d.head_dim + 4);
        let spec = spec.u32("RUNS", AttentionDims::parts(self.capacity().of(Count::Pages)));
        let groups = Extent::Fixed(d.heads / d.heads_each());
        let extents = [groups, Extent::Per(Count::Pages, AttentionDims::RUN), Extent::Per(Count::Sequences, 1)];
        self.dispatch(&ATTENTION_DECODE, spec, &tensors, extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, sequences, pages, q, k_pages, v_pages, parts] = tensors else { unreachable!() };
    let [d4, heads, capacity] = ["D4", "H", "RUNS"].map(|n| spec.get_u32(n));
    let d = 4 * d4;
    for (b, sequence) in sequences.u32().chunks(4).take(step.n_sequences as usize).enumerate() {
        let [first, entries, t] = [0, 1, 2].map(|i| sequence[i] as usize);
        let position = tokens.u32()[4 * t + 1] as usize;
        let parts =
            &mut parts.f32_mut()[b * capacity * heads * (d + 4)..][..AttentionDims::parts(entries) * heads * (d + 4)];
        parts.par_chunks_mut(d + 4).enumerate().for_each(|(i, to)| {
            let (from, h) = (i / heads * AttentionDims::RUN, i % heads);
            let list = &pages.u32()[2 * (first + from)..][..2 * (entries - from).min(AttentionDims::RUN)];
            let part = attend(spec, list, position, h, &q.f32()[(t * heads + h) * d..][..d], k_pages, v_pages);
            for (to, x) in to.iter_mut().zip(&part.o) {
                *to = *x as f32;
            }
            to[d..].copy_from_slice(&[part.m.max(f32::MIN as f64) as f32, part.l as f32, 0.0, 0.0]);
        });
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [tokens, sequences, pages, q, k_pages, v_pages, parts] = tensors else { unreachable!() };
    let (b, listed, heads) = (step.n_sequences as usize, step.max_pages as usize, spec.get_u32("H"));
    let seen = Seen::of(spec, step);
    let inputs = tokens.bytes_of(b) + sequences.bytes_of(b) + pages.bytes_of(b * listed);
    let kv = seen.keys * spec.get_u32("G") * (k_pages.bytes_of(1) + v_pages.bytes_of(1));
    let flops = seen.flops(heads, 4 * spec.get_u32("D4"));
    Cost::new(inputs + q.bytes_of(b) + kv, parts.bytes_of(b * AttentionDims::parts(listed) * heads), flops)
}
