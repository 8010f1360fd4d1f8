//! Attention of held-out tokens: exact over what is near, and as a cover answers over what is far.

use std::ops::AddAssign;

use super::maths::{add_scaled, dot};
use crate::kernels::Scores;

/// What a method has made of the far past of one key and value head.
pub trait Far: Send + Sync {
    /// Answers the queries of one token.
    fn answer<'a>(&'a self, query: &Query, answers: &mut Answers<'a>) -> Reads;

    /// Bytes that it keeps of the far past, with floats as f16.
    fn kept(&self) -> usize;
}

/// Queries of one token, of the R query heads that share a key and value head.
#[derive(Clone, Debug)]
pub struct Query {
    /// `[R, D]`, multiplied by the scale of scores.
    pub q: Vec<f32>,
    /// D.
    pub d: usize,
    /// Soft-cap of scores; 0: none.
    pub cap: f32,
    /// ln sum exp of the scores of what is near, of each query head.
    pub near: Vec<f32>,
}

impl Query {
    /// Scores of `key`, of each query head.
    pub fn scores<'a>(&'a self, key: &'a [f32]) -> impl Iterator<Item = f32> + 'a {
        self.q.chunks(self.d).map(move |q| capped(dot(q, key), self.cap))
    }
}

/// What answers for the far past: rows, or what stands for many.
#[derive(Clone, Debug, Default)]
pub struct Answers<'a> {
    /// `[n, R]`: log weights.
    pub scores: Vec<f32>,
    /// Values.
    pub values: Vec<&'a [f32]>,
}

impl<'a> Answers<'a> {
    /// One more: `value`, with a weight for each query head.
    pub fn push(&mut self, scores: impl Iterator<Item = f32>, value: &'a [f32]) {
        self.scores.extend(scores);
        self.values.push(value);
    }
}

/// What a query head reads of the far past.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Reads {
    /// Keys, of rows or of anchors, or as long as a key.
    pub keys: usize,
    /// Values, of rows or of anchors.
    pub values: usize,
    /// Anchors among them.
    pub anchors: usize,
    /// Rows of the far past among them.
    pub rows: usize,
}

impl Reads {
    /// Keys and values of rows.
    pub fn rows(n: usize) -> Self {
        Self { keys: n, values: n, anchors: 0, rows: n }
    }

    /// Bytes, as f16.
    pub fn bytes(&self, d: usize) -> usize {
        2 * d * (self.keys + self.values)
    }
}

impl AddAssign for Reads {
    fn add_assign(&mut self, other: Self) {
        self.keys += other.keys;
        self.values += other.values;
        self.anchors += other.anchors;
        self.rows += other.rows;
    }
}

pub(super) fn capped(score: f32, cap: f32) -> f32 {
    if cap > 0.0 { cap * (score / cap).tanh() } else { score }
}

/// Attention of one token's queries `[R, D]` over near `keys` and `values` and the far past, where there is one: `[R, D]`.
pub(super) fn attend(
    q: &[f32],
    d: usize,
    scores: Scores,
    keys: &[f32],
    values: &[f32],
    far: Option<&dyn Far>,
) -> (Vec<f32>, Reads) {
    let q = q.iter().map(|x| x * scores.scale).collect();
    let mut query = Query { q, d, cap: scores.cap, near: Vec::new() };
    let group = query.q.len() / d;
    let mut near = Answers::default();
    near.scores.reserve(keys.len() / d * group);
    keys.chunks(d).for_each(|key| near.scores.extend(query.scores(key)));
    let mut out = vec![0.0; group * d];
    let mut tops = Vec::with_capacity(group);
    let mut sums = Vec::with_capacity(group);
    for r in 0..group {
        let scores = near.scores.iter().skip(r).step_by(group);
        let top = scores.clone().fold(f32::NEG_INFINITY, |most, s| most.max(*s));
        let sum: f32 = scores.map(|s| (s - top).exp()).sum();
        query.near.push(top + sum.ln());
        tops.push(top);
        sums.push(sum);
    }
    let mut answers = Answers::default();
    let reads = far.map_or(Reads::default(), |far| far.answer(&query, &mut answers));
    for r in 0..group {
        let scores = answers.scores.iter().skip(r).step_by(group);
        let top = scores.clone().fold(tops[r], |most, s| most.max(*s));
        sums[r] = sums[r] * (tops[r] - top).exp() + scores.map(|s| (s - top).exp()).sum::<f32>();
        tops[r] = top;
    }
    let mut add = |scores: &[f32], value: &[f32]| {
        for (r, score) in scores.iter().enumerate() {
            add_scaled(&mut out[r * d..(r + 1) * d], (score - tops[r]).exp() / sums[r], value);
        }
    };
    near.scores.chunks(group).zip(values.chunks(d)).for_each(|(scores, value)| add(scores, value));
    answers.scores.chunks(group).zip(&answers.values).for_each(|(scores, value)| add(scores, value));
    (out, reads)
}
