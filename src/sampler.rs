//! How the next token is drawn: the CPU definition of `sample.wgsl`.
//!
//! In this order: logits are divided by the temperature; top-k keeps the k largest (all that tie with the k-th); top-p keeps
//! the largest of those until their share of the kept probability reaches p (all that tie with the last); one of the kept is
//! drawn from the softmax as the argmax of logit + Gumbel noise (Gumbel 1954; Maddison et al. 2014, arXiv:1411.0030). The
//! noise is a hash of (seed, position, token), so a draw depends on neither device nor batch.

use crate::error::{Error, Result};

/// How the tokens of a sequence are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token, the lowest id of those that tie.
    pub temperature: f32,
    /// Keep this many tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the most likely tokens until their probability reaches this; 1 keeps all.
    pub top_p: f32,
    /// Same seed, same tokens.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

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
}

/// What [`sample`] returns when no logit is a finite number.
pub const NO_TOKEN: u32 = u32::MAX;

impl Sampling {
    /// Refuses what no token can be drawn by.
    pub fn check(&self) -> Result<()> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(Error::request("temperature", "a finite number, at least 0", self.temperature));
        }
        match (0.0..=1.0).contains(&self.top_p) {
            true => Ok(()),
            false => Err(Error::request("top-p", "0 to 1", self.top_p)),
        }
    }

    /// The draw of the token that will stand at `position`.
    pub fn draw(&self, position: usize) -> Draw {
        let key = hash(self.seed as u32 ^ hash((self.seed >> 32) as u32 ^ hash(position as u32)));
        Draw { temperature: self.temperature, top_p: self.top_p, top_k: self.top_k, key }
    }
}

impl Draw {
    /// As `sample.wgsl` reads it.
    pub fn to_words(self) -> [u32; 4] {
        [self.temperature.to_bits(), self.top_p.to_bits(), self.top_k, self.key]
    }

    pub(crate) fn from_words([temperature, top_p, top_k, key]: [u32; 4]) -> Self {
        Self { temperature: f32::from_bits(temperature), top_p: f32::from_bits(top_p), top_k, key }
    }
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
    let mut cut = f32::NEG_INFINITY;
    if draw.top_k > 0 && (draw.top_k as usize) < kept.len() {
        cut = kept[draw.top_k as usize - 1];
        kept.retain(|&x| x >= cut);
    }
    if draw.top_p < 1.0 {
        let weight = |x: &f32| ((*x as f64 - largest as f64) / temperature).exp();
        let enough = draw.top_p as f64 * kept.iter().map(weight).sum::<f64>();
        let mut mass = 0.0;
        let last = kept.iter().find(|x| {
            mass += weight(x);
            mass >= enough
        });
        cut = cut.max(*last.unwrap_or(&cut));
    }
    argmax(
        logits.iter().enumerate().map(|(i, &x)| {
            if x >= cut { x as f64 / temperature + gumbel(draw.key, i as u32) } else { f64::NEG_INFINITY }
        }),
    )
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
