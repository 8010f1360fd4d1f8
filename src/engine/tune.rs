//! Which [`Tile`] linears get on a device: timed on a model's own largest linears, and never used before they have computed
//! there what their references say.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use half::f16;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{EngineOptions, Loading, Recorded, tile};
use crate::cache;
use crate::error::{Error, Result};
use crate::gpu::{Buffers, Caps, Gpu, Kind, Prepared};
use crate::kernel::Step;
use crate::kernels::is_tiled;
use crate::memory::{Element, Host, Memory, Tensor, TensorDesc, Tile, stride};
use crate::models::Config;
use crate::program::{Dispatch, Mode, Program};
use crate::weights::Weights;

/// The tiles that are tried on an adapter with `caps`: the one that is used without tuning, then the most promising first.
pub fn candidates(caps: &Caps) -> Vec<Tile> {
    let default = tile(Some(caps));
    let (sizes, fastest): (&[_], _) = match caps.kind {
        Kind::Software => (&[(8, 4), (16, 4), (8, 8), (8, 2)], default.broadcast),
        _ => (&[(64, 2), (64, 4), (32, 4), (128, 2), (32, 2), (32, 8)], caps.subgroup >= 8),
    };
    let mut candidates = vec![default];
    for broadcast in [default.broadcast, fastest, false] {
        let tiles = sizes.iter().map(|&(lanes, rows)| Tile { lanes, rows, broadcast, ..default });
        let new: Vec<_> = tiles.filter(|tile| !candidates.contains(tile)).collect();
        candidates.extend(new);
    }
    candidates
}

/// What share of the default's time a candidate takes, on the average of decode and prefill; `None` unless it is so much less
/// that noise does not explain it, and neither of them takes longer. Both are seconds of decode and of prefill.
pub fn share_of_time(candidate: [f64; 2], default: [f64; 2]) -> Option<f64> {
    let [decode, prefill] = [candidate[0] / default[0], candidate[1] / default[1]];
    let share = (decode + prefill) / 2.0;
    (decode.max(prefill) <= 1.0 + NOISE && share <= 1.0 - GAIN).then_some(share)
}

/// `tile` without a feature that a device may have and yet fail at.
pub(super) fn plainer(tile: Tile) -> Option<Tile> {
    tile.broadcast.then_some(Tile { broadcast: false, ..tile })
}

/// The tile for a model on `gpu`: what an earlier run has chosen, else what is chosen now.
pub(super) fn tuned(
    gpu: &Gpu,
    weights: &Weights,
    options: &EngineOptions,
    progress: &mut impl FnMut(Loading),
) -> Result<Tile> {
    let candidates = candidates(gpu.caps());
    let default = Excerpt::new(gpu, weights, options, candidates[0])?;
    let key = Key::new(gpu.caps(), &candidates, &default);
    let file = options.cache.as_ref().map(|folder| folder.join("tiles.json"));
    if let Some(tile) = file.as_deref().and_then(|file| key.find(file, &candidates)) {
        return Ok(tile);
    }
    let tile = fastest(gpu, weights, options, candidates, progress)?;
    if let Some(file) = file {
        key.keep(&file, tile);
    }
    Ok(tile)
}

/// What is not over after so long, it seems, is not begun: a tile, or a linear of one. That the default is compiled counts, too, although that is
/// needed anyway.
const BUDGET: Duration = Duration::from_secs(3);

/// Candidate and default are timed in turn so many times, each for so long at least; the least time of each counts.
const ROUNDS: usize = 3;
const SHORT: Duration = Duration::from_millis(1);

/// Times of equal tiles differ by so much at most.
const NOISE: f64 = 0.03;

/// What a tile must win to be taken.
const GAIN: f64 = 0.05;

/// Tokens of a prefill step that is timed, and of one that is checked, whose last tile is not full.
const TIMED: usize = 64;
const CHECKED: usize = 5;

/// Largest error in units of the root of a result's mean square: far beyond rounding, and far below what a wrong lane makes.
const BOUND: f64 = 0.05;

fn fastest(
    gpu: &Gpu,
    weights: &Weights,
    options: &EngineOptions,
    candidates: Vec<Tile>,
    progress: &mut impl FnMut(Loading),
) -> Result<Tile> {
    let (mut deadline, all) = (Deadline::new(), candidates.len());
    let mut left = VecDeque::from(candidates);
    let mut default: Option<Trial> = None;
    let (mut best, mut share) = (None, 1.0);
    while let Some(tile) = left.pop_front() {
        if default.is_some() && deadline.is_near() {
            break;
        }
        progress(Loading::Tuning(all - left.len(), all));
        let trial = Excerpt::new(gpu, weights, options, tile).and_then(|excerpt| {
            let Some(mut trial) = excerpt.trial(gpu, &mut deadline, default.is_none())? else { return Ok(None) };
            for _ in 0..ROUNDS {
                if let Some(default) = &mut default {
                    default.time(gpu)?;
                }
                trial.time(gpu)?;
            }
            Ok(Some(trial))
        });
        match (trial, &default) {
            (Ok(None), _) => break,
            (Ok(Some(trial)), None) => (default, best) = (Some(trial), Some(tile)),
            (Ok(Some(trial)), Some(default)) => {
                if let Some(found) = share_of_time(trial.seconds(), default.seconds()).filter(|found| *found < share) {
                    (best, share) = (Some(tile), found);
                }
            }
            (Err(e @ Error::DeviceLost { .. }), _) => return Err(e),
            (Err(e), _) => {
                // What a device fails at it fails at in tiles of any size.
                if plainer(tile).is_some() {
                    left.retain(|other| features(*other) != features(tile));
                }
                if left.is_empty() && default.is_none() {
                    return Err(e);
                }
                progress(Loading::Dropping(format!("{tile}: {e}")));
            }
        }
    }
    Ok(best.expect("the first of them that works"))
}

/// When tuning must be over.
struct Deadline {
    began: Instant,
    /// What took longest: to prepare the linears of a tile, or to check one of them, in which a driver may compile it.
    longest: Duration,
}

impl Deadline {
    fn new() -> Self {
        Self { began: Instant::now(), longest: Duration::ZERO }
    }

    /// Whether what takes as long as the longest so far might not be over in time.
    fn is_near(&self) -> bool {
        self.began.elapsed() + self.longest > BUDGET
    }

    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let result = work();
        self.longest = self.longest.max(began.elapsed());
        result
    }
}

/// A tile but for its size.
fn features(tile: Tile) -> Tile {
    Tile { lanes: 0, rows: 0, ..tile }
}

/// The largest linears of a model in decode and in prefill, each with how often it comes, and the tensors they use.
struct Excerpt {
    memory: Memory,
    linears: [Vec<(Program, usize)>; 2],
    /// Tokens of a step of prefill.
    tokens: usize,
}

impl Excerpt {
    fn new(gpu: &Gpu, weights: &Weights, options: &EngineOptions, tile: Tile) -> Result<Self> {
        let tokens = Config::read(weights)?.context.min(options.batch).min(TIMED);
        let sizes = EngineOptions { context: tokens, batch: tokens, sequences: 1, pages: 0, ..options.clone() };
        let Recorded { mut memory, programs, .. } = Recorded::with(weights, &sizes, Some(gpu.caps()), tile)?;
        let mut linears =
            [largest(&programs[Mode::Decode], &memory, 1), largest(&programs[Mode::Prefill], &memory, tokens)];
        // Only what they use is allocated.
        let mut all: Vec<_> = memory.tensors.drain(..).map(Some).collect();
        let mut places = vec![None; all.len()];
        for t in linears.iter_mut().flatten().flat_map(|(linear, _)| &mut linear.dispatches[0].tensors) {
            if let Some(desc) = all[t.0].take() {
                places[t.0] = Some(Tensor(memory.tensors.len()));
                memory.tensors.push(desc);
            }
            *t = places[t.0].expect("placed when it was taken");
        }
        Ok(Self { memory, linears, tokens })
    }

    /// Runs each linear once on the device, fails unless its results are the reference's, and has them ready to be timed. Nothing where
    /// that may not be over in time, unless it `must` be tried.
    fn trial(&self, gpu: &Gpu, deadline: &mut Deadline, must: bool) -> Result<Option<Trial>> {
        let buffers = gpu.allocate(&self.memory, |_, _| ())?;
        let mut host = self.memory.tensors.iter().map(filled).collect::<Result<Vec<_>>>()?;
        let programs: Vec<_> = self.linears.iter().flatten().map(|(linear, _)| linear).collect();
        let mut prepared = deadline.time(|| gpu.prepare(&buffers, &programs))?.into_iter();
        let steps = [(1, 1), (self.tokens.min(CHECKED), self.tokens)];
        let mut runs = [Vec::new(), Vec::new()];
        for ((linears, runs), (checked, timed)) in self.linears.iter().zip(&mut runs).zip(steps) {
            for ((linear, times), mut prepared) in linears.iter().zip(&mut prepared) {
                if !must && deadline.is_near() {
                    return Ok(None);
                }
                let check =
                    || self.check(gpu, &buffers, &linear.dispatches[0], &mut prepared, step(checked), &mut host);
                deadline.time(check)?;
                runs.push(Run { prepared, step: step(timed), times: *times, best: f64::INFINITY });
            }
        }
        Ok(Some(Trial { buffers, runs }))
    }

    fn check(
        &self,
        gpu: &Gpu,
        buffers: &Buffers,
        d: &Dispatch,
        prepared: &mut Prepared,
        step: Step,
        host: &mut [Host],
    ) -> Result<()> {
        for t in d.tensors.iter().filter(|t| !matches!(host[t.0], Host::Weight(_))) {
            gpu.write_host(buffers, *t, &host[t.0])?;
        }
        gpu.run(buffers, prepared, &step)?;
        d.run_reference(&step, host);
        for t in d.written() {
            let desc = self.memory.desc(t);
            let found = gpu.read(buffers, t, desc.bytes())?;
            let error = error(desc, &found, &host[t.0]);
            if error > BOUND {
                let what = format!("a wrong result of {}, by {error:.2e}", d.label(&self.memory));
                return Err(Error::Device { device: gpu.caps().name.clone(), what });
            }
        }
        Ok(())
    }
}

/// Distinct linears that take half of the operations of all, and one of each kernel at least, with their numbers.
fn largest(program: &Program, memory: &Memory, tokens: usize) -> Vec<(Program, usize)> {
    let mut linears: Vec<(String, Vec<Dispatch>)> = Vec::new();
    for d in program.dispatches.iter().filter(|d| is_tiled(d)) {
        let label = d.label(memory);
        match linears.iter_mut().find(|(l, _)| *l == label) {
            Some((_, same)) => same.push(d.clone()),
            None => linears.push((label, vec![d.clone()])),
        }
    }
    let step = step(tokens);
    let flops = |same: &[Dispatch]| -> u64 { same.iter().map(|d| d.cost(&step, memory).flops).sum() };
    let all: u64 = linears.iter().map(|(_, same)| flops(same)).sum();
    linears.sort_by_key(|(_, same)| std::cmp::Reverse(flops(same)));
    let (mut taken, mut kernels) = (0, Vec::new());
    linears.retain(|(_, same)| {
        let (large, new) = (2 * taken < all, !kernels.contains(&same[0].kernel.name));
        taken += flops(same);
        kernels.push(same[0].kernel.name);
        large || new
    });
    linears.into_iter().map(|(_, same)| (Program { dispatches: same[..1].to_vec() }, same.len())).collect()
}

/// The first `tokens` of one sequence, and logits of one.
fn step(tokens: usize) -> Step {
    Step { n_tokens: tokens as u32, n_outputs: 1, n_sequences: 1, ..Step::default() }
}

/// A number from -1 to 1 that differs from its neighbours.
pub(crate) fn scattered(i: usize) -> f32 {
    (i.wrapping_mul(2_654_435_761) >> 8 & 0xffff) as f32 / 32768.0 - 1.0
}

/// A tensor as linears may find it: positions one after the other, activations from -1 to 1.
fn filled(desc: &TensorDesc) -> Result<Host> {
    let mut host = desc.host()?;
    match &mut host {
        Host::F32(v) if !desc.is_table => {
            for (i, x) in v.iter_mut().enumerate() {
                *x = scattered(i);
            }
        }
        // Token, position, slot and sequence: the only input that linears have.
        Host::U32(v) => {
            for (i, token) in v.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                *token = [0, i as u32, i as u32, 0];
            }
        }
        _ => {}
    }
    Ok(host)
}

/// The largest error of `found`, in units of the root of the mean square of what is not 0 in `expected`.
fn error(desc: &TensorDesc, found: &[u8], expected: &Host) -> f64 {
    let found: Vec<f64> = match desc.element {
        Element::F16 => bytemuck::pod_collect_to_vec::<u8, f16>(found).iter().map(|x| x.to_f64()).collect(),
        _ => bytemuck::pod_collect_to_vec::<u8, f32>(found).iter().map(|x| f64::from(*x)).collect(),
    };
    // What stands behind a row is undefined.
    let elements = (0..found.len()).filter(|i| i % stride(desc.cols) < desc.cols);
    let (mut most, mut squares, mut n) = (0.0_f64, 0.0, 0.0);
    for i in elements {
        let e = f64::from(expected.kv(i));
        let difference = (found[i] - e).abs();
        most = most.max(if difference.is_nan() { f64::INFINITY } else { difference });
        if e != 0.0 {
            (squares, n) = (squares + e * e, n + 1.0);
        }
    }
    if most == 0.0 { 0.0 } else { most / (squares / f64::max(n, 1.0)).sqrt() }
}

/// A tile whose linears are right.
struct Trial {
    buffers: Buffers,
    /// Of decode and of prefill.
    runs: [Vec<Run>; 2],
}

struct Run {
    prepared: Prepared,
    step: Step,
    /// In a step of the model.
    times: usize,
    /// Seconds.
    best: f64,
}

impl Trial {
    fn time(&mut self, gpu: &Gpu) -> Result<()> {
        for run in self.runs.iter_mut().flatten() {
            let samples = gpu.measure(&self.buffers, &mut run.prepared, &run.step, SHORT)?;
            run.best = samples.into_iter().fold(run.best, f64::min);
        }
        Ok(())
    }

    /// Of a step of decode and of one of prefill.
    fn seconds(&self) -> [f64; 2] {
        [&self.runs[0], &self.runs[1]].map(|runs| runs.iter().map(|run| run.times as f64 * run.best).sum())
    }
}

/// What a choice holds for.
#[derive(Deserialize, PartialEq, Serialize)]
struct Key {
    /// Adapter, backend, driver and its version.
    device: String,
    /// SHA-256 of this crate's version, the candidates and the model's linears.
    linears: String,
}

#[derive(Deserialize, Serialize)]
struct Choice {
    #[serde(flatten)]
    key: Key,
    tile: String,
}

/// Most bytes of the file, and most choices in it; the oldest go first.
const LIMIT: u64 = 1 << 20;
const CHOICES: usize = 256;

impl Key {
    fn new(caps: &Caps, candidates: &[Tile], model: &Excerpt) -> Self {
        let mut hash = Sha256::new();
        let maths = model.memory.tile.maths;
        hash.update(format!("{} {candidates:?} {maths:?} {}", env!("CARGO_PKG_VERSION"), model.tokens));
        for (linear, times) in model.linears.iter().flatten() {
            hash.update(format!("{times} × {}", linear.dispatches[0].label(&model.memory)));
        }
        let linears = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Self { device: caps.to_string(), linears }
    }

    /// What `file` says of this key, if it is a candidate.
    fn find(&self, file: &Path, candidates: &[Tile]) -> Option<Tile> {
        let choice = choices(file).into_iter().find(|choice| choice.key == *self)?;
        candidates.iter().copied().find(|tile| format!("{tile:?}") == choice.tile)
    }

    /// Writes the choice beside what else the file holds.
    fn keep(self, file: &Path, tile: Tile) {
        let mut choices = choices(file);
        choices.retain(|choice| choice.key != self);
        choices.drain(..choices.len().saturating_sub(CHOICES - 1));
        choices.push(Choice { key: self, tile: format!("{tile:?}") });
        if let Ok(text) = serde_json::to_vec_pretty(&choices) {
            // The next run tunes again.
            let _ = cache::replace(file, &text);
        }
    }
}

/// None where the file is none of ours.
fn choices(file: &Path) -> Vec<Choice> {
    cache::read(file, LIMIT).and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
}
