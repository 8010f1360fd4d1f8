//! `o[t, h] = sum_i exp(m_i - m) o_i / sum_i exp(m_i - m) l_i`, `m = max_i m_i`, over the parts `i` of attention_decode. 0 when
//! every `l_i` is 0. Leaves (m, l) too, of all parts. Recorded by [`Recorder::attention`](crate::program::Recorder::attention).
//!
//! Source: Milakov and Gimelshein 2018, arXiv:1805.02867, equation 4.

use super::attention_prefill::{NEAR, Part};
use super::{AttentionDims, WORKGROUP};
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Host, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static ATTENTION_MERGE: Kernel = Kernel {
    name: "attention_merge",
    source: include_str!("../../shaders/attention_merge.wgsl"),
    bindings: &[("step", Access::Step), ("sequences", Read), ("parts", Read), ("o", ReadWrite), ("near", ReadWrite)],
    reference,
    cost,
};

impl Recorder<'_> {
    /// `tensors`: sequences `[B]`, parts `[B * RUNS * H, D + 4]`, o `[T, H*D]` and its (m, l) `[T*H, 4]`.
    pub(super) fn attention_merge(&mut self, d: AttentionDims, tensors: [Tensor; 4]) {
        let spec = Spec::default().u32("D4", d.head_dim / 4).u32("H", d.heads);
        let runs = AttentionDims::parts(self.capacity().of(Count::Pages));
        let spec = spec.u32("RUN", AttentionDims::RUN).u32("RUNS", runs);
        let across = Extent::Fixed((d.heads * d.head_dim / 4).div_ceil(WORKGROUP));
        let extents = [across, Extent::Per(Count::Sequences, 1), Extent::Fixed(1)];
        self.dispatch(&ATTENTION_MERGE, spec, &tensors, extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [sequences, parts, o, near] = tensors else { unreachable!() };
    let [d4, heads, capacity] = ["D4", "H", "RUNS"].map(|n| spec.get_u32(n));
    let d = 4 * d4;
    for (b, sequence) in sequences.u32().chunks(4).take(step.n_sequences as usize).enumerate() {
        let (entries, t) = (sequence[1] as usize, sequence[2] as usize);
        for h in 0..heads {
            let part = |s: usize| &parts.f32()[((b * capacity + s) * heads + h) * (d + 4)..][..d + 4];
            let seen: Vec<_> = (0..AttentionDims::parts(entries)).map(part).filter(|p| p[d + 1] != 0.0).collect();
            let m = seen.iter().map(|p| p[d] as f64).fold(f64::NEG_INFINITY, f64::max);
            let l: f64 = seen.iter().map(|p| (p[d] as f64 - m).exp() * p[d + 1] as f64).sum();
            for i in 0..d {
                let x: f64 = seen.iter().map(|p| (p[d] as f64 - m).exp() * p[i] as f64).sum();
                o.f32_mut()[(t * heads + h) * d + i] = if l != 0.0 { (x / l) as f32 } else { 0.0 };
            }
            Part { o: Vec::new(), m, l }.write_near(&mut near.f32_mut()[NEAR * (t * heads + h)..]);
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [sequences, parts, o, near] = tensors else { unreachable!() };
    let (b, d) = (step.n_sequences as usize, 4 * spec.get_u32("D4"));
    let heads = spec.get_u32("H");
    let merged = b * AttentionDims::parts(step.max_pages as usize) * heads;
    let written = o.bytes_of(b) + near.bytes_of(b * heads);
    Cost::new(sequences.bytes_of(b) + parts.bytes_of(merged), written, merged * (2 * d + 4))
}
