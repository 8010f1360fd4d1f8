//! A model on a device with its pool of pages; [`Engine::step`] runs a ragged batch of sessions.

mod available;
mod decode;
mod diverge;
mod draft;
mod profile;
mod recorded;
mod replay;
mod reuse;
mod saved;
mod testing;
mod trees;
mod tune;

pub use available::{available_memory, left_in_groups};
pub(crate) use decode::{Drawn, Launched, check_drawn};
pub use diverge::{Difference, Diverge, Report};
pub use profile::Profiled;
pub use recorded::{Plan, Recorded, expect_fits, tile};
pub use replay::{Attended, Replay};
pub(crate) use tune::scattered;
pub use tune::{candidates, share_of_time};

use std::path::PathBuf;

use crate::attention::aoc::Far;
use crate::attention::{self, Attention};
use crate::error::{Error, Result};
use crate::gpu::{Buffers, DeviceOptions, Gpu, Prepared};
use crate::kernel::Step;
use crate::kernels::{AttentionDims, Cover, PenaltyInputs, SAMPLED};
use crate::kv::{PagePool, PageTable};
use crate::memory::{Capacity, Element, Host, Maths, Memory, Tensor, Tile, stride};
use crate::models::{Config, Io};
use crate::prefix::PrefixCache;
use crate::program::{Mode, PerMode, Program};
use crate::sampler::{ALTERNATIVES, Sampling, TokenSet};
use crate::session::Session;
use crate::speculation::DraftCounts;
use crate::weights::Weights;

/// What an engine runs on.
#[derive(Clone, Debug)]
pub enum Backend {
    /// A GPU adapter.
    Gpu(DeviceOptions),
    /// The references, on the CPU.
    Cpu,
}

/// Sizes of an engine.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// What it runs on.
    pub backend: Backend,
    /// Positions of one session; 0 takes what the model was trained for.
    pub context: usize,
    /// Sessions of one step.
    pub sequences: usize,
    /// Tokens of one step, and with them the size of the activations.
    pub batch: usize,
    /// How keys and values are stored: one of [`Element::KV`].
    pub kv: Element,
    /// KV pages of 16 positions; 0 takes what `sequences` of `context` positions fill.
    pub pages: usize,
    /// Whether sessions may have [`Attention::Aoc`]: their steps then look the far past up in every layer, and there is memory to
    /// build trees in.
    pub aoc: bool,
    /// In which numbers linears form their products. All but f32 change the logits, by some 1e-2.
    pub maths: Maths,
    /// Most bytes of one binding, when less than the device allows.
    pub binding: usize,
    /// Most bytes of the model on the device. `None`: where the device computes in the system's memory, what is available
    /// of that; else until the device has no more.
    pub memory: Option<usize>,
    /// Whether to choose how linears run by timing them on the device, which takes 3 s at most. What was chosen is kept in `cache`.
    pub tune: bool,
    /// A folder for what later runs need not do again: tuning, and compiling shaders where the backend can keep them.
    pub cache: Option<PathBuf>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            backend: Backend::Gpu(DeviceOptions::default()),
            context: 0,
            sequences: 1,
            batch: 256,
            kv: Element::F16,
            pages: 0,
            aoc: false,
            maths: Maths::F32,
            binding: usize::MAX,
            memory: None,
            tune: false,
            cache: None,
        }
    }
}

/// What loading does now.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Loading {
    /// Times variants of kernels: so many, of all there are.
    Tuning(usize, usize),
    /// Compiles shaders: so many, of all there are.
    Compiling(usize, usize),
    /// Uploads bytes: so many, of all there are.
    Uploading(usize, usize),
    /// Drops a variant of kernels that this device fails at, and why: a plainer one is as right, and slower.
    Dropping(String),
}

/// A loaded model.
pub struct Engine {
    config: Config,
    /// See [`Recorded`].
    identity: [u8; 32],
    memory: Memory,
    io: Io,
    pool: PagePool,
    prefixes: PrefixCache,
    /// Guesses tokens of sessions.
    draft_model: Option<Box<Engine>>,
    draft_counts: DraftCounts,
    /// Steps begun so far.
    steps: u64,
    programs: PerMode<Program>,
    /// See [`trees`].
    trees: Vec<Program>,
    /// The first page of the tree that was built last.
    building: Option<u32>,
    /// The far past whose widths are tried.
    trying: Option<u32>,
    /// Operations that building and trying may do next; below 0 they have done more than that.
    credit: i64,
    device: Device,
}

enum Device {
    Gpu(Box<OnGpu>),
    Cpu { host: Vec<Host> },
}

struct OnGpu {
    gpu: Gpu,
    buffers: Buffers,
    programs: PerMode<Prepared>,
    trees: Vec<Prepared>,
}

impl Engine {
    /// Loads a checkpoint. Calls `progress` with what it does.
    ///
    /// [`Error::DoesNotFit`] comes before anything is allocated.
    pub fn load(weights: &Weights, options: &EngineOptions, progress: impl FnMut(Loading) + Send) -> Result<Self> {
        match &options.backend {
            Backend::Gpu(device) => {
                let coopmat = device.coopmat || options.maths == Maths::Coopmat;
                Self::load_on(Gpu::new(&DeviceOptions { coopmat, ..device.clone() })?, weights, options, progress)
            }
            Backend::Cpu => {
                expect_fits(weights, options, None)?;
                Self::load_on_cpu(Recorded::new(weights, options, None)?)
            }
        }
    }

    fn load_on(
        mut gpu: Gpu,
        weights: &Weights,
        options: &EngineOptions,
        mut progress: impl FnMut(Loading) + Send,
    ) -> Result<Self> {
        expect_fits(weights, options, Some(gpu.caps()))?;
        if let Some(folder) = &options.cache {
            gpu.keep_pipelines(folder);
        }
        let mut tile = match options.tune {
            true => tune::tuned(&gpu, weights, options, &mut progress)?,
            false => tile(Some(gpu.caps())),
        };
        let mut recorded = Recorded::with(weights, options, Some(gpu.caps()), tile)?;
        let pipelines = loop {
            let programs: Vec<_> = recorded.programs.0.iter().chain(&recorded.trees).collect();
            let compiled = gpu.compile(&programs, |done, all| progress(Loading::Compiling(done, all)));
            match (compiled, tune::plainer(tile)) {
                (Err(Error::Device { what, .. }), Some(plainer)) => {
                    progress(Loading::Dropping(format!("{tile}: {what}")));
                    tile = plainer;
                    recorded = Recorded::with(weights, options, Some(gpu.caps()), tile)?;
                }
                (compiled, _) => break compiled?,
            }
        };
        let total = recorded.memory.tensors().iter().map(|t| t.bytes()).sum();
        let mut done = 0;
        let buffers = gpu.allocate(&recorded.memory, |_, bytes| {
            done += bytes;
            progress(Loading::Uploading(done, total));
        })?;
        recorded.memory.forget_values();
        let bind = |program: &Program| gpu.bind(&buffers, program, &pipelines);
        let [prefill, batch, decode] = recorded.programs.0.each_ref().map(bind);
        let programs = PerMode([prefill?, batch?, decode?]);
        let trees = recorded.trees.iter().map(bind).collect::<Result<_>>()?;
        gpu.save_pipelines();
        Ok(Self::new(recorded, Device::Gpu(Box::new(OnGpu { gpu, buffers, programs, trees }))))
    }

    /// What is recorded for the CPU, or for a GPU, is run by the references.
    fn load_on_cpu(recorded: Recorded) -> Result<Self> {
        let host = recorded.memory.tensors().iter().map(|t| t.host()).collect::<Result<_>>()?;
        Ok(Self::new(recorded, Device::Cpu { host }))
    }

    fn new(recorded: Recorded, device: Device) -> Self {
        let Recorded { config, identity, memory, programs, trees, io } = recorded;
        let pool = PagePool::new(memory.capacity.pages);
        let prefixes = PrefixCache::new(&pool);
        let (building, trying, credit) = (None, None, 0);
        Self {
            config,
            identity,
            memory,
            io,
            pool,
            prefixes,
            draft_model: None,
            draft_counts: DraftCounts::default(),
            steps: 0,
            programs,
            trees,
            building,
            trying,
            credit,
            device,
        }
    }

    /// Shapes of the model.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What steps and sessions may hold.
    pub fn capacity(&self) -> &Capacity {
        &self.memory.capacity
    }

    /// The device, its driver and backend; or that the references run.
    pub fn device(&self) -> String {
        match &self.device {
            Device::Gpu(on) => on.gpu.caps().to_string(),
            Device::Cpu { .. } => "CPU interpreter".into(),
        }
    }

    /// The device, unless the references run.
    pub fn gpu(&self) -> Option<&Gpu> {
        match &self.device {
            Device::Gpu(on) => Some(&on.gpu),
            Device::Cpu { .. } => None,
        }
    }

    /// How linears run.
    pub fn tile(&self) -> Tile {
        self.memory.tile
    }

    /// Bytes on the device.
    pub fn plan(&self) -> Plan {
        Plan::of(&self.memory)
    }

    /// Pages that no session holds.
    pub fn free_pages(&self) -> usize {
        self.pool.n_free() + self.pool.n_idle()
    }

    /// An empty session that attends to all of its past.
    pub fn session(&self) -> Session {
        Session::new(&self.pool, Attention::Dense)
    }

    /// An empty session that attends so. [`Attention::Aoc`] takes an engine that was loaded with [`EngineOptions::aoc`], and of a
    /// model that has layers without a sliding window.
    pub fn session_with(&self, attention: Attention) -> Result<Session> {
        attention.check(self.config.window, self.has_anchors())?;
        Ok(Session::new(&self.pool, attention))
    }

    /// Whether it was loaded with [`EngineOptions::aoc`].
    pub fn has_anchors(&self) -> bool {
        self.io.attention.far.is_some()
    }

    /// Runs one step: a share of each session's pending tokens, decode before prefill, within the batch. A session whose
    /// pending tokens are all computed gets the next one, drawn by its sampling and pending from now on; its id is returned.
    ///
    /// On an error no session has changed. [`Error::OutOfPages`] and [`Error::ContextFull`] come before anything runs.
    pub fn step(&mut self, sessions: &mut [&mut Session]) -> Result<Vec<Option<u32>>> {
        for s in sessions.iter_mut() {
            s.reopen();
        }
        let counts = self.shares(sessions);
        let done: Vec<_> = sessions.iter().zip(&counts).map(|(s, n)| *n > 0 && *n == s.pending().len()).collect();
        let outputs: Vec<_> = done.iter().map(|done| *done as usize).collect();
        let sampled = self.attempt(sessions, |engine, sessions| {
            let inputs = engine.inputs(sessions, &counts, &outputs, true)?;
            if inputs.tokens.is_empty() {
                return Ok(Vec::new());
            }
            let launched = engine.launch(&inputs)?;
            let drawn = engine.drawn(launched)?;
            drawn.iter().try_for_each(|drawn| check_drawn(drawn.id))?;
            Ok(drawn)
        })?;
        let mut sampled = sampled.into_iter();
        let take = |(s, done): (&mut &mut Session, bool)| {
            let Drawn { id, logprobs } = if done { sampled.next() } else { None }?;
            s.take(id, logprobs);
            Some(id)
        };
        Ok(sessions.iter_mut().zip(done).map(take).collect())
    }

    /// Computes the pending tokens of a session and returns the logits after each of them, in as many steps as it takes.
    pub fn logits(&mut self, session: &mut Session) -> Result<Vec<Vec<f32>>> {
        let mut rows = Vec::new();
        self.each_logits(session, 0, |_, row| rows.push(row.to_vec()))?;
        Ok(rows)
    }

    /// As [`logits`](Self::logits), but passes each row with its position to `row`, and none of positions before `from`.
    pub fn each_logits(&mut self, session: &mut Session, from: usize, row: impl FnMut(usize, &[f32])) -> Result<()> {
        self.each_row(self.io.logits, session, from, row)
    }

    /// As [`each_logits`](Self::each_logits), with the hidden states that logits are made of: behind the last norm.
    pub fn each_hidden(&mut self, session: &mut Session, from: usize, row: impl FnMut(usize, &[f32])) -> Result<()> {
        self.each_row(self.io.last, session, from, row)
    }

    fn each_row(
        &mut self,
        t: Tensor,
        session: &mut Session,
        from: usize,
        mut row: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        session.reopen();
        let Capacity { tokens, outputs, .. } = self.memory.capacity;
        while !session.pending().is_empty() {
            let (first, pending) = (session.table.len(), session.pending().len());
            let (n, n_rows) = match from.saturating_sub(first).min(pending) {
                0 => (pending.min(outputs), pending.min(outputs)),
                before => (before.min(tokens), 0),
            };
            let rows = self.attempt(&mut [session], |engine, sessions| {
                let inputs = engine.inputs(sessions, &[n], &[n_rows], false)?;
                let launched = engine.launch(&inputs)?;
                engine.drawn(launched)?;
                if n_rows == 0 { Ok(Vec::new()) } else { engine.rows(t, n_rows) }
            })?;
            rows.iter().enumerate().for_each(|(i, values)| row(first + i, values));
        }
        Ok(())
    }

    /// The first `rows` rows of logits of the last step: one for each session that got a token, in their order.
    pub fn last_logits(&self, rows: usize) -> Result<Vec<Vec<f32>>> {
        self.rows(self.io.logits, rows)
    }

    fn rows(&self, t: Tensor, rows: usize) -> Result<Vec<Vec<f32>>> {
        let cols = self.memory.desc(t).cols;
        let values = self.read(t, 0, rows * stride(cols))?;
        let row = |row: &[u32]| row[..cols].iter().map(|bits| f32::from_bits(*bits)).collect();
        Ok(values.chunks(stride(cols)).map(row).collect())
    }

    /// Runs `f`; when it fails, the sessions forget the positions that it gave them.
    fn attempt<T>(
        &mut self,
        sessions: &mut [&mut Session],
        f: impl FnOnce(&mut Self, &mut [&mut Session]) -> Result<T>,
    ) -> Result<T> {
        let before: Vec<_> = sessions.iter().map(|s| s.table.len()).collect();
        let result = f(self, sessions);
        if result.is_err() {
            for (s, len) in sessions.iter_mut().zip(before) {
                s.forget(len);
            }
        }
        result
    }

    /// Tokens of each session in the next step.
    fn shares(&self, sessions: &[&mut Session]) -> Vec<usize> {
        let wanted: Vec<_> = sessions.iter().map(|s| s.pending().len()).collect();
        shares(&wanted, self.memory.capacity.tokens)
    }

    /// What a step computes: `counts[i]` tokens of session i behind its last computed position, which it has from now on, and
    /// the logits of the last `outputs[i]` of them; whether tokens are drawn from those. Within [`attempt`](Self::attempt).
    fn inputs(
        &mut self,
        sessions: &mut [&mut Session],
        counts: &[usize],
        outputs: &[usize],
        draws: bool,
    ) -> Result<Inputs> {
        self.tidy(sessions, counts.iter().sum())?;
        let capacity = self.memory.capacity;
        let active = counts.iter().filter(|n| **n > 0).count();
        if active > capacity.sequences {
            return Err(Error::request("sessions of a step", format!("at most {}", capacity.sequences), active));
        }
        let mut needed = 0;
        let cover = self.io.attention.far.map(|(cover, _)| cover);
        for (s, n) in sessions.iter().zip(counts) {
            let tokens = s.table.len() + n;
            if tokens > capacity.context {
                return Err(Error::ContextFull { tokens: tokens.max(s.tokens().len()), context: capacity.context });
            }
            // What is decoded ahead has no id yet.
            let known = &s.tokens()[s.table.len().min(s.tokens().len())..tokens.min(s.tokens().len())];
            check_ids(known, self.config.vocab)?;
            s.sampling.check(self.config.vocab)?;
            check_alternatives(s.logprobs)?;
            needed +=
                s.table.pages_for(*n) + cover.zip(s.far.as_ref()).map_or(0, |(cover, far)| far.pages_needed(cover));
        }
        self.make_room(needed)?;
        for s in sessions.iter_mut() {
            if let Some((cover, far)) = cover.zip(s.far.as_mut()) {
                far.prepare(cover, &self.pool, s.table.len())?;
            }
        }
        let rows = draws.then_some(capacity.outputs);
        let mut inputs = Inputs { cover, rows, ..Inputs::default() };
        for ((s, n), n_outputs) in sessions.iter_mut().zip(counts).zip(outputs) {
            if *n > 0 {
                let from = s.table.len();
                let allowed = if draws && *n_outputs > 0 { s.allowed(*n_outputs)? } else { None };
                if allowed.is_some() && from + n > s.tokens().len() {
                    return Err(Error::request("tokens of a constrained session", "known ones", "one in flight"));
                }
                s.table.append(*n)?;
                inputs.add(s, from, *n_outputs, allowed.as_deref());
            }
        }
        Ok(inputs)
    }

    fn write(&mut self, inputs: &Inputs) -> Result<()> {
        let io = &self.io;
        self.device.write(io.attention.tokens, inputs.tokens.as_flattened())?;
        self.device.write(io.attention.sequences, inputs.sequences.as_flattened())?;
        self.device.write(io.attention.tiles, inputs.tiles.as_flattened())?;
        self.device.write(io.attention.pages, inputs.pages.as_flattened())?;
        if let Some((_, far)) = io.attention.far {
            self.device.write(far.far, inputs.far().as_flattened())?;
            self.device.write(far.lists, &inputs.lists)?;
        }
        if !inputs.penalized.wants.is_empty() {
            self.device.write(io.penalties.wants, inputs.penalized.wants.as_flattened())?;
            self.device.write(io.penalties.lists, &inputs.penalized.lists)?;
            self.device.write(io.penalties.sets, &inputs.penalized.sets(self.config.vocab))?;
        }
        self.device.write(io.outputs, &inputs.outputs)?;
        self.device.write(io.sampling, inputs.sampling.as_flattened())
    }

    fn read(&self, t: Tensor, first: usize, words: usize) -> Result<Vec<u32>> {
        match &self.device {
            Device::Gpu(on) => {
                let bytes = on.gpu.read_at(&on.buffers, t, 4 * first, 4 * words)?;
                Ok(bytemuck::pod_collect_to_vec(&bytes))
            }
            Device::Cpu { host } => Ok(match &host[t.0] {
                Host::F32(v) => v[first..first + words].iter().map(|x| x.to_bits()).collect(),
                other => other.u32()[first..first + words].to_vec(),
            }),
        }
    }
}

/// Tokens of a step of at most `most`, of sequences that could have `wanted` of them: those that want one come first.
pub(crate) fn shares(wanted: &[usize], most: usize) -> Vec<usize> {
    let mut left = most;
    let mut shares = vec![0; wanted.len()];
    for decode in [true, false] {
        for (share, wanted) in shares.iter_mut().zip(wanted).filter(|(_, wanted)| (**wanted == 1) == decode) {
            *share = left.min(*wanted);
            left -= *share;
        }
    }
    shares
}

/// An error where more alternatives are wanted than there are.
pub(crate) fn check_alternatives(logprobs: Option<usize>) -> Result<()> {
    match logprobs {
        Some(n) if n > ALTERNATIVES => {
            Err(Error::request("logprobs", format!("at most {ALTERNATIVES} alternatives"), n))
        }
        _ => Ok(()),
    }
}

/// An error where one of the ids is none of a vocabulary of `vocab` tokens.
pub(crate) fn check_ids(ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().find(|id| **id as usize >= vocab) {
        Some(id) => Err(Error::request("token", format!("an id below {vocab}"), id)),
        None => Ok(()),
    }
}

impl Device {
    fn write(&mut self, t: Tensor, words: &[u32]) -> Result<()> {
        match self {
            Device::Gpu(on) => on.gpu.write(&on.buffers, t, bytemuck::cast_slice(words)),
            Device::Cpu { host } => {
                match &mut host[t.0] {
                    Host::F32(v) => v.iter_mut().zip(words).for_each(|(to, bits)| *to = f32::from_bits(*bits)),
                    other => other.u32_mut()[..words.len()].copy_from_slice(words),
                }
                Ok(())
            }
        }
    }
}

/// What the host writes before a step: layouts as [`Io`] says.
#[derive(Default)]
struct Inputs {
    tokens: Vec<[u32; 4]>,
    sequences: Vec<[u32; 4]>,
    tiles: Vec<[u32; 4]>,
    pages: Vec<[u32; 2]>,
    outputs: Vec<u32>,
    sampling: Vec<[u32; 8]>,
    /// Rows of logits before those that penalize makes; without them nothing is drawn.
    rows: Option<usize>,
    penalized: PenaltyInputs,
    /// Of each output's logprobs.
    alternatives: Vec<Option<usize>>,
    /// With trees.
    cover: Option<Cover>,
    /// A sequence's first tree is counted from the first of `trees`.
    past: Vec<[u32; 4]>,
    trees: Vec<[u32; 4]>,
    lists: Vec<u32>,
}

impl Inputs {
    /// Adds the positions of `s` from `from` on, with logits of the last `n_outputs`, from each of which no tokens but those of its
    /// set of `allowed` are drawn.
    fn add(&mut self, s: &Session, from: usize, n_outputs: usize, allowed: Option<&[TokenSet]>) {
        let (sequence, first) = (self.sequences.len() as u32, self.tokens.len());
        let to = s.table.len();
        let id = |p: usize| s.tokens().get(p).copied().unwrap_or_else(|| SAMPLED + s.drawn(p).1);
        let token = |p: usize| [id(p), p as u32, s.table.slot(p), sequence];
        self.tokens.extend((from..to).map(token));
        self.attend(&s.table, s.far.as_ref(), first);
        for (i, p) in (to - n_outputs..to).enumerate() {
            let allowed = allowed.map(|sets| &sets[i]);
            let row = self.outputs.len();
            self.outputs.push((first + p - from) as u32);
            let (draw, row, alternatives) = match self.rows {
                None => (Sampling::default().draw(0), row, None),
                Some(rows) => (s.sampling.draw(p + 1), self.penalize(s, p, [row, rows], allowed), s.logprobs),
            };
            self.sampling.push(draw.to_words(row, alternatives));
            self.alternatives.push(alternatives);
        }
    }

    /// Adds a sequence of the tokens from `first` on, and what they read.
    fn attend(&mut self, table: &PageTable, far: Option<&Far>, first: usize) {
        let (list, n) = (self.pages.len(), self.tokens.len() - first);
        attention::list(table, &mut self.pages);
        let far = self.cover.zip(far);
        let past = far.map(|(cover, far)| far.list(cover, &mut self.trees, &mut self.lists));
        self.past.push(past.unwrap_or_default());
        self.sequences.push([list, self.pages.len() - list, first, n].map(|n| n as u32));
        for tile in (0..n).step_by(AttentionDims::TILE) {
            let n = (n - tile).min(AttentionDims::TILE);
            self.tiles.push([list, self.pages.len() - list, first + tile, n].map(|n| n as u32));
        }
    }

    /// The row of logits that the token behind position `p` of `s` is drawn from, where the model has them in `row`, of `rows`.
    fn penalize(&mut self, s: &Session, p: usize, [row, rows]: [usize; 2], allowed: Option<&TokenSet>) -> usize {
        if !s.sampling.adjusts() && allowed.is_none() {
            return row;
        }
        let to = rows + self.penalized.wants.len();
        let known = s.tokens().len().min(p + 1);
        let pending: Vec<_> = (known..p + 1).map(|p| s.drawn(p).1).collect();
        self.penalized.add([row, to], &s.sampling, &s.tokens()[..known], &pending, allowed);
        to
    }

    /// The far past of the sequences, then their trees.
    fn far(&self) -> Vec<[u32; 4]> {
        let behind = self.past.len() as u32;
        let past = self.past.iter().map(|[first, trees, size, list]| [first + behind, *trees, *size, *list]);
        past.chain(self.trees.iter().copied()).collect()
    }

    /// The program that runs them.
    fn mode(&self) -> Mode {
        match (self.sequences.len(), self.tokens.len()) {
            (1, 1) => Mode::Decode,
            (sequences, tokens) if sequences == tokens => Mode::Batch,
            _ => Mode::Prefill,
        }
    }

    fn step(&self) -> Step {
        Step {
            n_tokens: self.tokens.len() as u32,
            n_outputs: self.outputs.len() as u32,
            n_sequences: self.sequences.len() as u32,
            n_tiles: self.tiles.len() as u32,
            max_pages: self.sequences.iter().map(|s| s[1]).max().unwrap_or(0),
            n_penalized: self.penalized.wants.len() as u32,
            n_logprobs: if self.alternatives.iter().any(Option::is_some) { self.outputs.len() as u32 } else { 0 },
            ..Step::default()
        }
    }
}
