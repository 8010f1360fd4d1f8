//! `errors[(first + g) * trials + trial] += (sum |trial - exact|² / |exact|², rows that answered alone, answers, 0)`, over the tokens
//! and the query heads of `g`, first the layer's first head: how far an answer from anchors is from that of all rows.

use super::aoc_lookup::Cover;
use super::attention_prefill::NEAR;
use super::{AttentionDims, AttentionInputs, Scores};
use crate::kernel::Access::{Read, ReadWrite, Uniform};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Memory, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_GATE: Kernel = Kernel {
    name: "aoc_gate",
    source: include_str!("../../shaders/aoc_gate.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("exact", Read),
        ("trial", Read),
        ("near", Read),
        ("errors", ReadWrite),
        ("layer", Uniform),
    ],
    reference,
    cost,
};

/// Answers with a width that is tried, and how far they are from those of all rows.
#[derive(Clone, Copy, Debug)]
pub struct Trials {
    /// `[T, H*D]`.
    pub answer: Tensor,
    /// For each layer, key and value head and width: squares of relative errors summed up, rows that answered alone, answers.
    pub errors: Tensor,
}

impl Trials {
    /// For a model of these heads, of which `cover` has the widths of all layers.
    pub fn declare(d: AttentionDims, cover: Cover, m: &mut Memory) -> Self {
        let answer = m.activation("trial", Count::Tokens, d.heads * d.head_dim);
        let errors = m.tensor("errors", Element::F32, cover.heads * Cover::TRIALS.len(), 4);
        Self { answer, errors }
    }
}

impl Recorder<'_> {
    /// Tries widths in the layer whose first head `layer` has, on kept queries at the positions of `inputs`' tokens: answers from all rows,
    /// and those with each of [`Cover::TRIALS`] against them. `q`, `o`: `[T, H*D]`; k and v pages.
    pub fn aoc_trials(
        &mut self,
        d: AttentionDims,
        inputs: AttentionInputs,
        layer: Tensor,
        scores: Scores,
        [q, k, v, o]: [Tensor; 4],
        trials: Trials,
    ) {
        let AttentionInputs { tokens, near, far: Some((cover, far)), .. } = inputs else { return };
        self.aoc_recall(d, cover, tokens, far, [k, v], q);
        let answer = |r: &mut Self, widths, o| {
            r.attention_near(d, inputs, scores, q, [k, v], o);
            r.aoc_lookup(d, cover, widths, scores, tokens, far, [q, k, v, near, o]);
        };
        answer(self, far.trial(0), o);
        for trial in 0..Cover::TRIALS.len() {
            answer(self, far.trial(1 + trial), trials.answer);
            self.aoc_gate(d, layer, trial, [o, near], trials);
        }
    }

    /// Of answers with the width `trial` of [`Cover::TRIALS`], in the layer whose first head `layer` has. `near` is what they left there.
    pub fn aoc_gate(
        &mut self,
        d: AttentionDims,
        layer: Tensor,
        trial: usize,
        [exact, near]: [Tensor; 2],
        trials: Trials,
    ) {
        let spec = Spec::default().u32("D4", d.head_dim / 4).u32("H", d.heads).u32("G", d.kv_heads);
        let spec = spec.u32("TRIALS", Cover::TRIALS.len()).u32("TRIAL", trial);
        let groups = [d.kv_heads, 1, 1].map(Extent::Fixed);
        self.dispatch(&AOC_GATE, spec, &[exact, trials.answer, near, trials.errors, layer], groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [exact, trial, near, errors, layer] = tensors else { unreachable!() };
    let [d4, heads, kv_heads, trials, which] = ["D4", "H", "G", "TRIALS", "TRIAL"].map(|n| spec.get_u32(n));
    let (d, group) = (4 * d4, heads / kv_heads);
    for g in 0..kv_heads {
        let mut sums = [0.0; 3];
        for t in 0..step.n_tokens as usize {
            for answer in (0..group).map(|r| t * heads + g * group + r) {
                let of = |host: &Host, i: usize| f64::from(host.f32()[answer * d + i]);
                let error: f64 = (0..d).map(|i| (of(trial, i) - of(exact, i)).powi(2)).sum();
                let norm: f64 = (0..d).map(|i| of(exact, i).powi(2)).sum();
                sums[0] += error / norm.max(1e-30);
                sums[1] += f64::from(near.f32()[NEAR * answer + 2]);
                sums[2] += 1.0;
            }
        }
        let at = 4 * ((layer.u32()[0] as usize + g) * trials + which);
        for (to, sum) in errors.f32_mut()[at..].iter_mut().zip(sums) {
            *to = (f64::from(*to) + sum) as f32;
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [exact, trial, _, errors, layer] = tensors else { unreachable!() };
    let t = step.n_tokens as usize;
    let [heads, g] = ["H", "G"].map(|n| spec.get_u32(n));
    let sums = errors.bytes_of(g);
    let read = layer.bytes() + exact.bytes_of(t) + trial.bytes_of(t) + sums + 4 * t * heads;
    Cost::new(read, sums, t * heads * spec.get_u32("D4") * 4 * 5)
}
