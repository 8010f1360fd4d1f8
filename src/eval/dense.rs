//! What a dense run leaves, and the run with another answer for the far past.

use std::ops::{ControlFlow, Range};

use rayon::prelude::*;

use super::attend::{attend, capped};
use super::report::Outcome;
use super::{Covers, Query, Reads, maths};
use crate::attention::Attention;
use crate::engine::{Attended, Engine, Replay};
use crate::error::{Error, Result};
use crate::kernels::{AttentionDims, Scores};
use crate::kv::PAGE;
use crate::session::Session;

/// Positions at the start of a text that are always attended to.
pub const SINKS: usize = PAGE;

/// Which positions of a text are what, behind the sinks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Protocol {
    /// Positions of the far past.
    pub far: usize,
    /// Positions behind it that stay dense.
    pub local: usize,
    /// Held-out tokens behind those.
    pub tokens: usize,
}

impl Protocol {
    /// Tokens that it needs; the last is foretold only.
    pub fn length(&self) -> usize {
        self.start() + self.tokens + 1
    }

    /// Position of the first held-out token.
    fn start(&self) -> usize {
        SINKS + self.far + self.local
    }

    fn check(&self, found: usize) -> Result<()> {
        if self.far == 0 || !self.far.is_multiple_of(PAGE) {
            return Err(Error::request("far", format!("a multiple of {PAGE}"), self.far));
        }
        if self.local == 0 || !self.local.is_multiple_of(PAGE) {
            return Err(Error::request("local", format!("a multiple of {PAGE}"), self.local));
        }
        if self.tokens == 0 {
            return Err(Error::request("tokens", "at least 1", 0));
        }
        if found < self.length() {
            let expected = format!("at least {}: sinks, far, local and held-out ones", self.length());
            return Err(Error::request("tokens of the text", expected, found));
        }
        Ok(())
    }
}

/// A dense run over a text.
pub struct Dense {
    protocol: Protocol,
    dims: AttentionDims,
    tokens: Vec<u32>,
    session: Session,
    /// Of all layers; those with a window have no heads.
    layers: Vec<Layer>,
    /// Of the held-out tokens.
    logits: Vec<Vec<f32>>,
}

struct Layer {
    scores: Scores,
    heads: Vec<Head>,
}

/// `[n, D]` each, but for `queries`: `[local, R, D]`.
#[derive(Default)]
struct Head {
    near_keys: Vec<f32>,
    near_values: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
}

/// The far past of one key and value head, and what is known of its queries before the held-out tokens.
#[derive(Clone, Copy)]
pub struct Past<'a> {
    /// `[far, D]`.
    pub keys: &'a [f32],
    /// `[far, D]`.
    pub values: &'a [f32],
    /// D.
    pub d: usize,
    /// How its layer scores keys.
    pub scores: Scores,
    /// H / G.
    pub group: usize,
    /// Position of the first local query.
    pub first: usize,
    head: &'a Head,
}

impl<'a> Past<'a> {
    /// Rows of the far past.
    pub fn rows(&self) -> usize {
        self.keys.len() / self.d
    }

    /// Key of a row.
    pub fn key(&self, row: usize) -> &'a [f32] {
        &self.keys[row * self.d..(row + 1) * self.d]
    }

    /// Value of a row.
    pub fn value(&self, row: usize) -> &'a [f32] {
        &self.values[row * self.d..(row + 1) * self.d]
    }

    /// Positions between the far past and the held-out tokens.
    pub fn local(&self) -> usize {
        self.head.queries.len() / self.group / self.d
    }

    /// `[SINKS + local, D]`: keys and values of the sinks and of them.
    pub fn near(&self) -> [&'a [f32]; 2] {
        [&self.head.near_keys, &self.head.near_values]
    }

    /// `[R, D]`: queries of one of them, as they are.
    pub fn query(&self, local: usize) -> &'a [f32] {
        let row = self.group * self.d;
        &self.head.queries[local * row..(local + 1) * row]
    }

    /// Queries of some of them, which see what is near up to their own position.
    pub fn queries(&self, locals: Range<usize>) -> impl Iterator<Item = Query> {
        locals.map(|local| {
            let q: Vec<f32> = self.query(local).iter().map(|x| x * self.scores.scale).collect();
            let near = &self.head.near_keys[..(SINKS + local + 1) * self.d];
            let mass = |q: &[f32]| {
                let scores: Vec<f32> =
                    near.chunks(self.d).map(|key| capped(maths::dot(q, key), self.scores.cap)).collect();
                maths::log_sum_exp(scores.into_iter())
            };
            Query { near: q.chunks(self.d).map(mass).collect(), q, d: self.d, cap: self.scores.cap }
        })
    }
}

/// Told how many positions of how many are computed; may break off.
pub type Progress<'a> = &'a mut dyn FnMut(usize, usize) -> ControlFlow<()>;

impl Dense {
    /// Runs over the first [`Protocol::length`] of `tokens`.
    pub fn record(replay: &mut Replay, tokens: &[u32], protocol: Protocol, progress: Progress) -> Result<Self> {
        protocol.check(tokens.len())?;
        let tokens = &tokens[..protocol.length()];
        let (far, start, end) = (SINKS + protocol.far, protocol.start(), protocol.start() + protocol.tokens);
        let dims = replay.engine().config().attention;
        let batch = replay.engine().capacity().tokens;
        let mut session = replay.engine().session();
        prefill(replay.engine(), &mut session, &tokens[..far], end, progress)?;
        let mut layers: Vec<Layer> =
            replay.layers().into_iter().map(|scores| Layer { scores, heads: Vec::new() }).collect();
        for layer in layers.iter_mut().filter(|layer| layer.scores.window == 0) {
            layer.heads.resize_with(dims.kv_heads, Head::default);
        }
        let mut logits = Vec::new();
        for part in tokens[far..end].chunks(batch) {
            session.push(part);
            let attend = |attended: &Attended| {
                layers[attended.layer].keep_queries(attended, dims, start);
                Ok(None)
            };
            replay.run(&mut session, start, attend, |_, row| logits.push(row.to_vec()))?;
            go_on(progress(session.tokens().len(), end))?;
        }
        for (l, layer) in layers.iter_mut().enumerate().filter(|(_, layer)| !layer.heads.is_empty()) {
            let [k, v] = replay.kept(&session, l, 0, start)?;
            for (g, head) in layer.heads.iter_mut().enumerate() {
                let rows = |all: &[f32], positions: Range<usize>| -> Vec<f32> {
                    let row = |p: usize| &all[(p * dims.kv_heads + g) * dims.head_dim..][..dims.head_dim];
                    positions.flat_map(row).copied().collect()
                };
                head.near_keys = [rows(&k, 0..SINKS), rows(&k, far..start)].concat();
                head.near_values = [rows(&v, 0..SINKS), rows(&v, far..start)].concat();
                (head.keys, head.values) = (rows(&k, SINKS..far), rows(&v, SINKS..far));
            }
        }
        session.rewind(start);
        Ok(Self { protocol, dims, tokens: tokens.into(), session, layers, logits })
    }

    /// The far pasts of all key and value heads of layers without a window, layer by layer.
    pub fn pasts(&self) -> impl Iterator<Item = Past<'_>> {
        let (d, group) = (self.dims.head_dim, self.dims.heads / self.dims.kv_heads);
        let first = SINKS + self.protocol.far;
        self.layers.iter().flat_map(move |layer| {
            layer.heads.iter().map(move |head| {
                let Head { keys, values, .. } = head;
                Past { keys, values, d, scores: layer.scores, group, first, head }
            })
        })
    }

    /// Shapes of the model's attention.
    pub fn dims(&self) -> AttentionDims {
        self.dims
    }

    /// Which positions are what.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Bytes of keys and values of the far past, as f16.
    pub fn bytes(&self) -> usize {
        self.pasts().map(|past| Reads::rows(past.rows()).bytes(past.d)).sum()
    }

    /// Computes all again by a session with `attention` of its own, and compares the held-out tokens. What it has far away is less by the
    /// positions that its near past holds.
    pub fn compare_session(&self, engine: &mut Engine, attention: Attention, progress: Progress) -> Result<Outcome> {
        let start = self.protocol.start();
        let mut session = engine.session_with(attention)?;
        prefill(engine, &mut session, &self.tokens[..start], self.tokens.len(), progress)?;
        engine.graduate(&mut session)?;
        let row = self.pasts().count() * Reads::rows(1).bytes(self.dims.head_dim);
        // Anchors are a quarter of the rows.
        let mut outcome = Outcome::new(session.far() * 5 / 4 * row);
        session.push(&self.tokens[start..start + self.protocol.tokens]);
        engine.each_logits(&mut session, start, |position, row| {
            outcome.add(&self.logits[position - start], row, self.tokens[position + 1]);
        })?;
        outcome.rows = session.reads();
        outcome.bytes_read = session.reads() * row as f64;
        Ok(outcome)
    }

    /// Runs the held-out tokens again, and compares.
    pub fn compare(&self, replay: &mut Replay, covers: &Covers, progress: Progress) -> Result<Outcome> {
        let start = self.protocol.start();
        let tokens = &self.tokens[start..start + self.protocol.tokens];
        let mut outcome = Outcome::new(covers.iter().map(|far| far.kept()).sum());
        let mut sequel = Sequel::new(self, covers);
        let batch = replay.engine().capacity().tokens;
        for (i, part) in tokens.chunks(batch).enumerate() {
            sequel.run(replay, part, |position, row| {
                outcome.add(&self.logits[position - start], row, self.tokens[position + 1]);
            })?;
            go_on(progress(i * batch + part.len(), tokens.len()))?;
        }
        outcome.finish(sequel.reads, self.dims.head_dim, tokens.len() * covers.len());
        Ok(outcome)
    }
}

/// A sequence that goes on behind the local positions of a dense run, whose far past its covers answer for.
pub struct Sequel<'a> {
    dense: &'a Dense,
    covers: &'a Covers<'a>,
    session: Session,
    /// Keys and values of sinks and of positions behind the far past, of each head.
    near: Vec<[Vec<f32>; 2]>,
    /// Of each layer, its first head.
    firsts: Vec<usize>,
    reads: Reads,
}

impl<'a> Sequel<'a> {
    /// Without a token of its own.
    pub fn new(dense: &'a Dense, covers: &'a Covers<'a>) -> Self {
        let heads = dense.layers.iter().flat_map(|layer| &layer.heads);
        let near = heads.map(|head| [head.near_keys.clone(), head.near_values.clone()]).collect();
        let count = |first: &mut usize, layer: &Layer| Some(std::mem::replace(first, *first + layer.heads.len()));
        let firsts = dense.layers.iter().scan(0, count).collect();
        Self { dense, covers, session: dense.session.fork(), near, firsts, reads: Reads::default() }
    }

    /// Computes further tokens; calls `row` with the position and the logits of each.
    pub fn run(&mut self, replay: &mut Replay, tokens: &[u32], row: impl FnMut(usize, &[f32])) -> Result<()> {
        let Self { dense, covers, session, near, firsts, reads } = self;
        session.push(tokens);
        let attend = |attended: &Attended| {
            let layer = &dense.layers[attended.layer];
            if layer.heads.is_empty() {
                return Ok(None);
            }
            let heads = firsts[attended.layer]..firsts[attended.layer] + layer.heads.len();
            let near = &mut near[heads.clone()];
            let (o, read) = answer(attended, dense.dims, layer.scores, near, &covers[heads]);
            *reads += read;
            Ok(Some(o))
        };
        replay.run(session, 0, attend, row)
    }
}

/// Computes `tokens` for `session`, of `all` positions that will be.
fn prefill(
    engine: &mut Engine,
    session: &mut Session,
    tokens: &[u32],
    all: usize,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
) -> Result<()> {
    for part in tokens.chunks(engine.capacity().tokens) {
        session.push(part);
        engine.each_logits(session, usize::MAX, |_, _| ())?;
        go_on(progress(session.tokens().len(), all))?;
    }
    Ok(())
}

fn go_on(flow: ControlFlow<()>) -> Result<()> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::request("evaluation", "to run to its end", "a request to stop")),
    }
}

impl Layer {
    fn keep_queries(&mut self, attended: &Attended, dims: AttentionDims, end: usize) {
        let row = dims.heads / dims.kv_heads * dims.head_dim;
        for (g, head) in self.heads.iter_mut().enumerate() {
            let tokens = attended.q.chunks(dims.heads * dims.head_dim).take(end.saturating_sub(attended.first));
            tokens.for_each(|q| head.queries.extend_from_slice(&q[g * row..(g + 1) * row]));
        }
    }
}

/// Answers of all tokens of a step, `[T, H, D]`, whose keys and values become part of what is near.
fn answer(
    attended: &Attended,
    dims: AttentionDims,
    scores: Scores,
    near: &mut [[Vec<f32>; 2]],
    covers: &[Box<dyn super::Far + '_>],
) -> (Vec<f32>, Reads) {
    const TOKENS: usize = 8;
    let (d, row) = (dims.head_dim, dims.heads * dims.head_dim);
    let group = row / dims.kv_heads;
    let n = attended.q.len() / row;
    let before = near[0][0].len() / d;
    for (g, [keys, values]) in near.iter_mut().enumerate() {
        let of_head = |all: &'_ [f32], to: &mut Vec<f32>| {
            all.chunks(dims.kv_heads * d).for_each(|token| to.extend_from_slice(&token[g * d..(g + 1) * d]));
        };
        of_head(&attended.k, keys);
        of_head(&attended.v, values);
    }
    let near = &*near;
    let tasks: Vec<_> = (0..near.len()).flat_map(|g| (0..n).step_by(TOKENS).map(move |t| (g, t))).collect();
    let answers: Vec<_> = tasks
        .into_par_iter()
        .map(|(g, t)| {
            let mut reads = Reads::default();
            let answered = (t..n.min(t + TOKENS)).map(|t| {
                let q = &attended.q[t * row + g * group..][..group];
                let [keys, values] = [0, 1].map(|i| &near[g][i][..(before + t + 1) * d]);
                let (o, read) = attend(q, d, scores, keys, values, Some(&*covers[g]));
                reads += read;
                (t, g, o)
            });
            (answered.collect::<Vec<_>>(), reads)
        })
        .collect();
    let (mut o, mut all) = (vec![0.0; n * row], Reads::default());
    for (answered, reads) in answers {
        all += reads;
        answered.into_iter().for_each(|(t, g, x)| o[t * row + g * group..][..group].copy_from_slice(&x));
    }
    (o, all)
}
