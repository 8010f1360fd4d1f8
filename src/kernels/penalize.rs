//! Row `to` of the logits is row `row` as [`sampler`](crate::sampler) adjusts it before a token is drawn: by what is allowed, biases,
//! penalties and DRY. Tokens that steps before have drawn count, though the host does not know them yet.

use std::collections::HashMap;

use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Element, Host, Memory, Tensor, TensorDesc, stride};
use crate::program::Recorder;
use crate::sampler::{Adjustment, BIASES, Dry, HISTORY, Penalties, Sampling, TokenSet, counts, last};

/// See the module.
pub static PENALIZE: Kernel = Kernel {
    name: "penalize",
    source: include_str!("../../shaders/penalize.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("logits", ReadWrite),
        ("wants", Read),
        ("lists", Read),
        ("sets", Read),
        ("ids", Read),
        ("repeats", ReadWrite),
    ],
    reference,
    cost,
};

/// What is asked of penalize in a step. Layouts are those of the shader.
#[derive(Clone, Copy, Debug)]
pub struct PenaltyTensors {
    /// `[R, 20]`: what is wanted of a row.
    pub wants: Tensor,
    /// Entries, histories and pending tokens of all.
    pub lists: Tensor,
    /// `[2 R, V / 32]`: sets of tokens.
    pub sets: Tensor,
    /// `[R, entries]`: repetitions that each entry's token would lengthen.
    pub repeats: Tensor,
}

/// Tokens of a sequence that the host does not know yet, at most: it is so many steps ahead.
pub const PENDING: usize = 4;

const WORDS: usize = 20;
const ALL: u32 = u32::MAX;

impl PenaltyTensors {
    /// For a vocabulary of `vocab`.
    pub fn declare(vocab: usize, m: &mut Memory) -> Self {
        let (rows, history) = (m.capacity.of(Count::Penalized), m.capacity.context.min(HISTORY));
        let entries = history + BIASES + PENDING;
        Self {
            wants: m.input("wants", Count::Penalized, WORDS),
            lists: m.tensor("lists", Element::U32, rows, 3 * entries + history + PENDING),
            sets: m.tensor("sets", Element::U32, 2 * rows, vocab.div_ceil(32)),
            repeats: m.tensor("repeats", Element::U32, rows, entries),
        }
    }
}

/// What the host writes for penalize before a step.
#[derive(Clone, Debug, Default)]
pub struct PenaltyInputs {
    /// As [`PenaltyTensors`] has them.
    pub wants: Vec<[u32; WORDS]>,
    /// As [`PenaltyTensors`] has them.
    pub lists: Vec<u32>,
    sets: Vec<TokenSet>,
}

impl PenaltyInputs {
    /// Wants row `row` as `sampling` has it after `history` and `pending`, [`PENDING`] tokens at most, in row `to`. Each of
    /// `pending` is an index of `ids`.
    pub fn add(
        &mut self,
        [row, to]: [usize; 2],
        sampling: &Sampling,
        history: &[u32],
        pending: &[u32],
        allowed: Option<&TokenSet>,
    ) {
        let Sampling { penalties, dry, logit_bias, .. } = sampling;
        let [counted, compared] = sampling.looks_back();
        let [n_counted, n_compared] = [counted, compared].map(|n| n.min(pending.len()));
        let recent = last(history, counted - n_counted);
        let (counts, history) = (counts(recent), last(history, compared - n_compared));
        let mut codes = HashMap::new();
        let entries = self.lists.len();
        let biases = logit_bias.iter().map(|(id, bias)| (*id, *bias));
        for (id, bias) in biases.chain(recent.iter().chain(history).map(|id| (*id, 0.0))) {
            let code = *codes.entry(id).or_insert_with(|| {
                self.lists.extend([id, 0, counts.get(&id).copied().unwrap_or(0)]);
                (self.lists.len() - entries) / 3 - 1
            });
            let sum = &mut self.lists[entries + 3 * code + 1];
            *sum = (f32::from_bits(*sum) + bias).to_bits();
        }
        let first = self.lists.len();
        self.lists.extend(history.iter().map(|id| codes[id] as u32));
        self.lists.extend(pending);
        let lists = [entries, codes.len(), first, history.len(), first + history.len(), pending.len()];
        let [entries, n_entries, history, n_history, pending, n_pending] = lists.map(|n| n as u32);
        let Penalties { repeat, frequency, presence, .. } = *penalties;
        let [repeat, frequency, presence] = [repeat, frequency, presence].map(f32::to_bits);
        let (allowed, breakers) =
            (allowed.map_or(ALL, |set| self.set(set)), if dry.acts() { self.set(&dry.breakers) } else { ALL });
        #[rustfmt::skip]
        self.wants.push([
            row as u32, to as u32, entries, n_entries, history, n_history, pending, n_pending, n_counted as u32,
            n_compared as u32, allowed, breakers, repeat, frequency, presence, dry.multiplier.to_bits(),
            dry.base.to_bits(), u32::try_from(dry.allowed_length).unwrap_or(u32::MAX / 2), dry.most() as u32, 0,
        ]);
    }

    /// The sets of all, of a vocabulary of `vocab`.
    pub fn sets(&self, vocab: usize) -> Vec<u32> {
        let words = vocab.div_ceil(32);
        let padded =
            |set: &TokenSet| set.words().iter().copied().chain(std::iter::repeat(0)).take(words).collect::<Vec<_>>();
        self.sets.iter().flat_map(padded).collect()
    }

    fn set(&mut self, set: &TokenSet) -> u32 {
        let i = self.sets.iter().position(|s| s == set).unwrap_or_else(|| {
            self.sets.push(set.clone());
            self.sets.len() - 1
        });
        i as u32
    }
}

impl Recorder<'_> {
    /// `logits`: `[2 R, V]`; `ids`: what steps have drawn.
    pub fn penalize(&mut self, logits: Tensor, t: PenaltyTensors, ids: Tensor) {
        let v = self.desc(logits).cols;
        self.expect(t.wants, Element::U32, WORDS);
        self.expect(t.sets, Element::U32, v.div_ceil(32));
        self.expect(ids, Element::U32, 1);
        let spec = Spec::default().u32("V", v).u32("WORDS", v.div_ceil(32)).u32("ENTRIES", self.desc(t.repeats).cols);
        let extents = [Extent::Per(Count::Penalized, 1), Extent::Fixed(1), Extent::Fixed(1)];
        self.dispatch(&PENALIZE, spec, &[logits, t.wants, t.lists, t.sets, ids, t.repeats], extents);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [logits, wants, lists, sets, ids, repeats] = tensors else { unreachable!() };
    let [v, words, entries] = ["V", "WORDS", "ENTRIES"].map(|name| spec.get_u32(name));
    let (lists, sets, logits) = (lists.u32(), sets.u32(), logits.f32_mut());
    let wants = wants.u32().as_chunks::<WORDS>().0.iter().take(step.n_penalized as usize);
    for (want, repeats) in wants.zip(repeats.u32_mut().chunks_mut(entries)) {
        let list = |at: usize, each: usize| &lists[want[at] as usize..][..each * want[at + 1] as usize];
        let [n_counted, n_compared] = [want[8], want[9]].map(|n| n as usize);
        let pending: Vec<u32> = list(6, 1).iter().map(|i| ids.u32()[*i as usize]).collect();
        let entries = list(2, 3).as_chunks::<3>().0;
        let mut counts: HashMap<u32, u32> = entries.iter().map(|[id, _, count]| (*id, *count)).collect();
        last(&pending, n_counted).iter().for_each(|id| *counts.entry(*id).or_default() += 1);
        counts.retain(|_, count| *count > 0);
        let mut history: Vec<u32> = list(4, 1).iter().map(|code| entries[*code as usize][0]).collect();
        history.extend(last(&pending, n_compared));
        let [repeat, frequency, presence, multiplier, base] = [12, 13, 14, 15, 16].map(|i| f32::from_bits(want[i]));
        let set = |i: u32| (i != ALL).then(|| TokenSet::from(&sets[i as usize * words..][..words]));
        let (allowed_length, breakers, allowed) = (want[17] as usize, set(want[11]).unwrap_or_default(), set(want[10]));
        let dry = Dry { multiplier, base, allowed_length, breakers, ..Dry::default() };
        let repetitions = dry.repetitions(&history);
        for (e, id) in entries.iter().map(|entry| entry[0]).chain(pending.iter().copied()).enumerate() {
            let is_first = e < entries.len() || !entries.iter().any(|entry| entry[0] == id);
            let is_first = is_first && !pending[..e.saturating_sub(entries.len())].contains(&id);
            let beyond = repetitions.get(&id).filter(|_| is_first);
            repeats[e] = beyond.map_or(0, |beyond| 1 + *beyond as u32);
        }
        let adjustment = Adjustment {
            allowed: allowed.as_ref(),
            biases: entries.iter().map(|[id, bias, _]| (*id, f64::from(f32::from_bits(*bias)))).collect(),
            counts,
            penalties: Penalties { repeat, frequency, presence, ..Penalties::default() },
            dry: &dry,
            repetitions,
        };
        let [row, to] = [want[0], want[1]].map(|row| row as usize * stride(v));
        let adjusted = adjustment.of(&logits[row..row + v]);
        logits[to..to + v].copy_from_slice(&adjusted);
    }
}

/// A row is copied; the lists are short beside it.
fn cost(_: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [logits, wants, ..] = tensors else { unreachable!() };
    let rows = step.n_penalized as usize;
    Cost::new(logits.bytes_of(rows) + wants.bytes_of(rows), logits.bytes_of(rows), 0)
}
