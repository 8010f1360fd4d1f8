//! How the next token is drawn: the CPU definition of `penalize.wgsl` and `sample.wgsl`.
//!
//! In this order, of which each part has no effect by default:
//! 1. Tokens that a constraint does not allow are left out.
//! 2. The bias of a token is added to its logit.
//! 3. [`Penalties`]: tokens among the last `last_n` get lower logits (Keskar et al. 2019, arXiv:1909.05858, and OpenAI's two).
//! 4. [`Dry`]: tokens that would go on repeating an earlier sequence get lower ones, the longer the repetition.
//! 5. Logits are divided by the temperature; at 0 the most likely token is taken, and what follows does nothing.
//! 6. Top-k keeps the k largest (all that tie with the k-th).
//! 7. Typical-p keeps those whose surprise is nearest to the expected one (Meister et al. 2023, arXiv:2202.00666), until their share of
//!    the kept probability reaches p (all that tie with the last).
//! 8. Top-p keeps the largest of those until their share of the kept probability reaches p (all that tie with the last).
//! 9. Min-p keeps those at least p times as likely as the likeliest.
//! 10. One of the kept is drawn from the softmax as the argmax of logit + Gumbel noise (Gumbel 1954; Maddison et al. 2014,
//!     arXiv:1411.0030). The noise is a hash of (seed, position, token), so a draw depends on neither device nor batch.
//!
//! Names, meanings and order are llama.cpp's, but that its temperature comes last: here typical-p, top-p and min-p see probabilities
//! at the temperature in use, as in vLLM and transformers. A text that breaks [`Dry`]'s sequences breaks them wherever a token contains
//! it, while llama.cpp also finds it across tokens.

use std::collections::HashMap;
use std::sync::Arc;

use crate::error::{Error, Result};

/// How the tokens of a sequence are drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token, the lowest id of those that tie.
    pub temperature: f32,
    /// Keep this many tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the tokens of most typical surprise until their probability reaches this; 1 keeps all.
    pub typical_p: f32,
    /// Keep the most likely tokens until their probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens of this share of the likeliest one's probability; 0 keeps all.
    pub min_p: f32,
    /// Against tokens that came before.
    pub penalties: Penalties,
    /// Against sequences that came before.
    pub dry: Dry,
    /// Tokens and what is added to their logits; those of a token that is named twice are added up.
    pub logit_bias: Vec<(u32, f32)>,
    /// Same seed, same tokens.
    pub seed: u64,
}

/// What tokens lose that are among the last ones of the sequence, its prompt included. The defaults take nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// So many tokens count, up to [`HISTORY`].
    pub last_n: usize,
    /// Divides logits above 0, multiplies others.
    pub repeat: f32,
    /// Subtracted once for each time.
    pub frequency: f32,
    /// Subtracted once.
    pub presence: f32,
}

/// Don't repeat yourself: a token that would make a repetition of `n` tokens longer loses
/// `multiplier * base^(n - allowed_length)`. (p-e-w, text-generation-webui, pull request 5677.) The default takes nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// 0 takes nothing.
    pub multiplier: f32,
    /// At least 1.
    pub base: f32,
    /// Repetitions of fewer tokens lose nothing.
    pub allowed_length: usize,
    /// So many of the last tokens are looked at, up to [`HISTORY`].
    pub last_n: usize,
    /// No repetition goes across one of these, and none of these loses anything.
    pub breakers: TokenSet,
}

/// A set of token ids, a bit for each. Cheap to clone.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct TokenSet(Arc<[u32]>);

/// One draw: the sampling of a sequence at one position.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// As in [`Sampling`].
    pub temperature: f32,
    /// As in [`Sampling`].
    pub top_p: f32,
    /// As in [`Sampling`].
    pub top_k: u32,
    /// Selects the noise.
    pub key: u32,
    /// As in [`Sampling`].
    pub min_p: f32,
    /// As in [`Sampling`].
    pub typical_p: f32,
}

/// How likely the model found a token that was drawn, and which it found likelier: natural logarithms of probabilities by the
/// logits as the model has them, before any sampling.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The token that was drawn.
    pub id: u32,
    /// Its own.
    pub logprob: f32,
    /// The likeliest tokens with theirs, as many as were asked for.
    pub top: Vec<(u32, f32)>,
}

/// What [`sample`] returns when no logit is a finite number.
pub const NO_TOKEN: u32 = u32::MAX;

/// Texts that break [`Dry`]'s sequences where nothing else is said, as in llama.cpp.
pub const BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

/// Tokens of a sequence that penalties and DRY look back at, at most.
pub const HISTORY: usize = 4096;

/// Tokens of a sequence that may have a bias.
pub const BIASES: usize = 300;

/// Alternatives of [`Logprobs`], at most.
pub const ALTERNATIVES: usize = 20;

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            typical_p: 1.0,
            top_p: 1.0,
            min_p: 0.0,
            penalties: Penalties::default(),
            dry: Dry::default(),
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

impl Default for Penalties {
    fn default() -> Self {
        Self { last_n: 64, repeat: 1.0, frequency: 0.0, presence: 0.0 }
    }
}

impl Default for Dry {
    fn default() -> Self {
        let breakers = TokenSet::default();
        Self { multiplier: 0.0, base: 1.75, allowed_length: 2, last_n: usize::MAX, breakers }
    }
}

impl Sampling {
    /// Refuses what no token of a vocabulary of `vocab` can be drawn by.
    pub fn check(&self, vocab: usize) -> Result<()> {
        let Self { penalties, dry, .. } = self;
        let numbers = [
            ("temperature", self.temperature, 0.0..=f32::MAX, "a finite number, at least 0"),
            ("typical-p", self.typical_p, 0.0..=1.0, "0 to 1"),
            ("top-p", self.top_p, 0.0..=1.0, "0 to 1"),
            ("min-p", self.min_p, 0.0..=1.0, "0 to 1"),
            ("repeat penalty", penalties.repeat, f32::MIN_POSITIVE..=f32::MAX, "a finite number above 0"),
            ("frequency penalty", penalties.frequency, f32::MIN..=f32::MAX, "a finite number"),
            ("presence penalty", penalties.presence, f32::MIN..=f32::MAX, "a finite number"),
            ("DRY multiplier", dry.multiplier, 0.0..=f32::MAX, "a finite number, at least 0"),
            ("DRY base", dry.base, 1.0..=f32::MAX, "a finite number, at least 1"),
        ];
        for (what, found, allowed, expected) in numbers {
            if !allowed.contains(&found) {
                return Err(Error::request(what, expected, found));
            }
        }
        if self.logit_bias.len() > BIASES {
            return Err(Error::request("logit bias", format!("at most {BIASES} tokens"), self.logit_bias.len()));
        }
        for (id, bias) in &self.logit_bias {
            if *id as usize >= vocab {
                return Err(Error::request("logit bias", format!("ids below {vocab}"), id));
            }
            if !bias.is_finite() {
                return Err(Error::request("logit bias", "finite numbers", bias));
            }
        }
        Ok(())
    }

    /// The draw of the token that will stand at `position`.
    pub fn draw(&self, position: usize) -> Draw {
        let key = hash(self.seed as u32 ^ hash((self.seed >> 32) as u32 ^ hash(position as u32)));
        let Self { temperature, top_p, top_k, min_p, typical_p, .. } = *self;
        Draw { temperature, top_p, top_k, key, min_p, typical_p }
    }

    /// How many of the last tokens penalties count, and DRY compares.
    pub(crate) fn looks_back(&self) -> [usize; 2] {
        let Self { penalties, dry, .. } = self;
        let looks = |acts, last_n: usize| if acts { last_n.min(HISTORY) } else { 0 };
        [looks(penalties.act(), penalties.last_n), looks(dry.acts(), dry.last_n)]
    }

    /// Whether logits are other than the model has them before a token is drawn.
    pub fn adjusts(&self) -> bool {
        self.penalties.act() || self.dry.acts() || !self.logit_bias.is_empty()
    }
}

impl Penalties {
    /// Whether any token could lose something.
    pub fn act(&self) -> bool {
        self.last_n > 0 && (self.repeat != 1.0 || self.frequency != 0.0 || self.presence != 0.0)
    }

    fn penalized(&self, x: f64, count: u32) -> f64 {
        let repeat = f64::from(self.repeat);
        let x = if x > 0.0 { x / repeat } else { x * repeat };
        x - f64::from(count) * f64::from(self.frequency) - f64::from(self.presence)
    }
}

impl Dry {
    /// Whether any token could lose something.
    pub fn acts(&self) -> bool {
        self.multiplier > 0.0 && self.last_n > 0
    }

    /// Longer repetitions beyond `allowed_length` lose no more, as f32 would be infinite.
    pub(crate) fn most(&self) -> usize {
        if self.base > 1.000_001 { (f32::MAX.ln() / self.base.ln()) as usize } else { 0 }
    }

    /// For each token that would go on repeating something of `history`: tokens of the repetition beyond `allowed_length`.
    pub(crate) fn repetitions(&self, history: &[u32]) -> HashMap<u32, usize> {
        let n = history.len();
        // No repetition is longer than what stands behind the last breaker.
        let unbroken = history.iter().rev().take_while(|id| !self.breakers.contains(**id)).count();
        let mut found = HashMap::new();
        for i in 1..n {
            let before = history[..i].iter().rev().zip(history.iter().rev());
            let length = before.take_while(|(a, b)| a == b).count().min(unbroken);
            if length >= self.allowed_length && !self.breakers.contains(history[i]) {
                let most = found.entry(history[i]).or_insert(0);
                *most = (length - self.allowed_length).min(self.most()).max(*most);
            }
        }
        found
    }
}

impl TokenSet {
    /// Whether `id` is one of them.
    pub fn contains(&self, id: u32) -> bool {
        self.0.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// Bit i % 32 of word i / 32 says whether i is one of them; those of words that are missing are not.
    pub fn words(&self) -> &[u32] {
        &self.0
    }
}

impl FromIterator<u32> for TokenSet {
    fn from_iter<T: IntoIterator<Item = u32>>(ids: T) -> Self {
        let mut words = Vec::new();
        for id in ids {
            let word = id as usize / 32;
            if words.len() <= word {
                words.resize(word + 1, 0);
            }
            words[word] |= 1 << (id % 32);
        }
        Self(words.into())
    }
}

impl From<&[u32]> for TokenSet {
    /// Of [`words`](Self::words).
    fn from(words: &[u32]) -> Self {
        Self(words.into())
    }
}

impl Draw {
    /// As `sample.wgsl` reads it: it draws from logits row `row`; with how many alternatives logprobs are wanted, if they are.
    pub fn to_words(self, row: usize, alternatives: Option<usize>) -> [u32; 8] {
        let Self { temperature, top_p, top_k, key, min_p, typical_p } = self;
        let [temperature, top_p, min_p, typical_p] = [temperature, top_p, min_p, typical_p].map(f32::to_bits);
        let wanted = alternatives.map_or(0, |n| n as u32 + 1);
        [temperature, top_p, top_k, key, min_p, typical_p, row as u32, wanted]
    }

    pub(crate) fn from_words([temperature, top_p, top_k, key, min_p, typical_p, ..]: [u32; 8]) -> Self {
        let [temperature, top_p, min_p, typical_p] = [temperature, top_p, min_p, typical_p].map(f32::from_bits);
        Self { temperature, top_p, top_k, key, min_p, typical_p }
    }
}

/// What is done to a row of logits before a token is drawn from it.
pub(crate) struct Adjustment<'a> {
    /// All are allowed where there is none.
    pub allowed: Option<&'a TokenSet>,
    pub biases: HashMap<u32, f64>,
    /// How often each token came in what penalties count.
    pub counts: HashMap<u32, u32>,
    pub penalties: Penalties,
    pub dry: &'a Dry,
    /// As [`Dry::repetitions`] has them.
    pub repetitions: HashMap<u32, usize>,
}

impl Adjustment<'_> {
    pub fn of(&self, logits: &[f32]) -> Vec<f32> {
        let adjusted = |(id, logit): (u32, &f32)| {
            if self.allowed.is_some_and(|allowed| !allowed.contains(id)) {
                return f32::NEG_INFINITY;
            }
            let mut x = f64::from(*logit) + self.biases.get(&id).unwrap_or(&0.0);
            if let Some(count) = self.counts.get(&id) {
                x = self.penalties.penalized(x, *count);
            }
            if let Some(beyond) = self.repetitions.get(&id) {
                x -= f64::from(self.dry.multiplier) * f64::from(self.dry.base).powi(*beyond as i32);
            }
            x as f32
        };
        (0..).zip(logits).map(adjusted).collect()
    }
}

/// The logits that the token behind `history` is drawn from, where the model has computed `logits`; no other than those of `allowed`.
pub fn adjust(logits: &[f32], sampling: &Sampling, history: &[u32], allowed: Option<&TokenSet>) -> Vec<f32> {
    let Sampling { penalties, dry, logit_bias, .. } = sampling;
    let mut biases = HashMap::new();
    logit_bias.iter().for_each(|(id, bias)| *biases.entry(*id).or_default() += f64::from(*bias));
    let [counted, compared] = sampling.looks_back();
    let (counts, repetitions) = (counts(last(history, counted)), dry.repetitions(last(history, compared)));
    Adjustment { allowed, biases, counts, penalties: *penalties, dry, repetitions }.of(logits)
}

/// The last `n` of them.
pub(crate) fn last(tokens: &[u32], n: usize) -> &[u32] {
    &tokens[tokens.len().saturating_sub(n)..]
}

/// How often each token is among them.
pub(crate) fn counts(tokens: &[u32]) -> HashMap<u32, u32> {
    let mut counts = HashMap::new();
    tokens.iter().for_each(|id| *counts.entry(*id).or_default() += 1);
    counts
}

/// Draws a token from `logits`; [`NO_TOKEN`] when none is a number above the lowest.
pub fn sample(logits: &[f32], draw: Draw) -> u32 {
    if draw.temperature == 0.0 {
        return argmax(logits.iter().map(|&x| x as f64));
    }
    let temperature = draw.temperature as f64;
    let mut kept: Vec<f32> = logits.iter().copied().filter(|x| !x.is_nan()).collect();
    kept.sort_unstable_by(|a, b| b.total_cmp(a));
    let Some(&largest) = kept.first() else { return NO_TOKEN };
    let weight = |x: &f32| ((*x as f64 - largest as f64) / temperature).exp();
    let mut cut = f32::NEG_INFINITY;
    if draw.top_k > 0 && (draw.top_k as usize) < kept.len() {
        cut = kept[draw.top_k as usize - 1];
        kept.retain(|&x| x >= cut);
    }
    // ln p(x) = x / T - ln Z, and its mean is that of x / T less the same.
    let (mut mean, mut width) = (0.0, f64::INFINITY);
    let surprise = |x: f32, mean: f64| (x as f64 / temperature - mean).abs();
    if draw.typical_p < 1.0 && largest < f32::INFINITY {
        kept.retain(|&x| x > f32::NEG_INFINITY);
        let mass: f64 = kept.iter().map(weight).sum();
        mean = kept.iter().map(|x| weight(x) * *x as f64 / temperature).sum::<f64>() / mass;
        let mut nearest = kept.clone();
        nearest.sort_by(|a, b| surprise(*a, mean).total_cmp(&surprise(*b, mean)));
        width = reached(&nearest, draw.typical_p, weight).map_or(width, |x| surprise(x, mean));
        kept.retain(|&x| surprise(x, mean) <= width);
    }
    if draw.top_p < 1.0 {
        cut = cut.max(reached(&kept, draw.top_p, weight).unwrap_or(cut));
        kept.retain(|&x| x >= cut);
    }
    let likeliest = kept.first().map_or(f64::NEG_INFINITY, |x| *x as f64);
    let lowest = if draw.min_p > 0.0 { likeliest + temperature * (draw.min_p as f64).ln() } else { f64::NEG_INFINITY };
    let keeps = |x: f32| x >= cut && x as f64 >= lowest && (width == f64::INFINITY || surprise(x, mean) <= width);
    let score = |(i, &x): (u32, &f32)| {
        if keeps(x) { x as f64 / temperature + gumbel(draw.key, i) } else { f64::NEG_INFINITY }
    };
    argmax((0..).zip(logits).map(score))
}

/// The first of `values` with which the share of those so far reaches `p`.
fn reached(values: &[f32], p: f32, weight: impl Fn(&f32) -> f64) -> Option<f32> {
    let enough = p as f64 * values.iter().map(&weight).sum::<f64>();
    let mut mass = 0.0;
    let last = values.iter().find(|x| {
        mass += weight(x);
        mass >= enough
    });
    last.copied()
}

fn argmax(scores: impl Iterator<Item = f64>) -> u32 {
    let mut best = (f32::MIN as f64, NO_TOKEN);
    for (i, score) in scores.enumerate() {
        if score > best.0 {
            best = (score, i as u32);
        }
    }
    best.1
}

/// `-ln(-ln(u))`, u uniform in (0, 1) from a hash of (key, i).
fn gumbel(key: u32, i: u32) -> f64 {
    let u = ((hash(key ^ hash(i)) >> 9) as f64 + 0.5) / (1 << 23) as f64;
    -(-u.ln()).ln()
}

/// PCG-RXS-M-XS (O'Neill 2014).
fn hash(x: u32) -> u32 {
    let state = x.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (word >> 22) ^ word
}
