//! `errors[first + g * step] += (sum |trial - exact|², sum |exact|², rows that answered alone, answers)`, over the tokens whose sequence
//! is measured and the query heads of `g`: how far an answer from anchors is from that of all rows.

use super::AttentionDims;
use super::aoc_lookup::{Cover, FarInputs};
use super::attention_prefill::NEAR;
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Memory, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_GATE: Kernel = Kernel {
    name: "aoc_gate",
    source: include_str!("../../shaders/aoc_gate.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("tokens", Read),
        ("far", Read),
        ("lists", Read),
        ("exact", Read),
        ("trial", Read),
        ("near", Read),
        ("errors", ReadWrite),
    ],
    reference,
    cost,
};

/// Answers with each width that is tried, and how far they are from those of all rows.
#[derive(Clone, Copy, Debug)]
pub struct Trials {
    /// `[T, H*D]`.
    pub answers: [Tensor; Cover::WIDTHS.len()],
    /// For each layer, key and value head and width: (error, norm), squared and summed up, rows that answered alone, answers.
    pub errors: Tensor,
}

impl Trials {
    /// For a model of these heads, of which `cover` has the widths of all layers.
    pub fn declare(d: AttentionDims, cover: Cover, m: &mut Memory) -> Self {
        let answers = Cover::WIDTHS.map(|_| m.activation("trial", Count::Tokens, d.heads * d.head_dim));
        let errors = m.tensor("errors", Element::F32, cover.heads * Cover::WIDTHS.len(), 4);
        Self { answers, errors }
    }
}

impl Recorder<'_> {
    /// Of answers with width `width` of [`Cover::WIDTHS`], in a layer whose first width is `first`. `near` is what they left there.
    #[allow(clippy::too_many_arguments)]
    pub fn aoc_gate(
        &mut self,
        d: AttentionDims,
        cover: Cover,
        [first, width]: [usize; 2],
        tokens: Tensor,
        far: FarInputs,
        [exact, near]: [Tensor; 2],
        trials: Trials,
    ) {
        let each = Cover::WIDTHS.len();
        let spec = Spec::default().u32("D4", d.head_dim / 4).u32("H", d.heads).u32("G", d.kv_heads);
        let spec = spec.u32("FIRST", first * each + width).u32("STEP", each).u32("MEASURED", cover.measured());
        let groups = [d.kv_heads, 1, 1].map(Extent::Fixed);
        let tensors = [tokens, far.far, far.lists, exact, trials.answers[width], near, trials.errors];
        self.dispatch(&AOC_GATE, spec, &tensors, groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, far, lists, exact, trial, near, errors] = tensors else { unreachable!() };
    let [d4, heads, kv_heads, first, each, measured] =
        ["D4", "H", "G", "FIRST", "STEP", "MEASURED"].map(|n| spec.get_u32(n));
    let of_group = heads / kv_heads * 4 * d4;
    for g in 0..kv_heads {
        let mut sums = [0.0; 4];
        for (t, token) in tokens.u32().chunks(4).take(step.n_tokens as usize).enumerate() {
            let [size, list] = [2, 3].map(|i| far.u32()[4 * token[3] as usize + i] as usize);
            if size == 0 || lists.u32()[list + measured] == 0 {
                continue;
            }
            let at = (t * kv_heads + g) * of_group;
            for (y, x) in exact.f32()[at..][..of_group].iter().zip(&trial.f32()[at..]) {
                let [x, y] = [*x, *y].map(f64::from);
                sums[0] += (x - y) * (x - y);
                sums[1] += y * y;
            }
            for h in 0..heads / kv_heads {
                sums[2] += f64::from(near.f32()[NEAR * (t * heads + g * (heads / kv_heads) + h) + 2]);
                sums[3] += 1.0;
            }
        }
        let at = 4 * (first + g * each);
        for (to, sum) in errors.f32_mut()[at..].iter_mut().zip(sums) {
            *to = (f64::from(*to) + sum) as f32;
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [tokens, far, _, exact, trial, _, errors] = tensors else { unreachable!() };
    let (t, b) = (step.n_tokens as usize, step.n_sequences as usize);
    let [heads, g] = ["H", "G"].map(|n| spec.get_u32(n));
    let sums = errors.bytes_of(g);
    let read =
        tokens.bytes_of(t) + far.bytes_of(b) + 4 * b + exact.bytes_of(t) + trial.bytes_of(t) + sums + 4 * t * heads;
    Cost::new(read, sums, t * heads * spec.get_u32("D4") * 4 * 5)
}
