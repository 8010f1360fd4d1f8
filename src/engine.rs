//! A model on a device with its pool of pages; [`Engine::step`] runs a ragged batch of sessions.

mod diverge;
mod testing;

pub use diverge::{Difference, Diverge, Report};

use crate::error::{Error, Result};
use crate::gpu::{Buffers, Caps, DeviceOptions, Gpu, Kind, Prepared};
use crate::kernel::{Count, Step};
use crate::kernels::AttentionDims;
use crate::kv::{PAGE, PagePool};
use crate::memory::{Capacity, Element, Host, Memory, Tensor, Tile, stride};
use crate::models::{self, Config, Io};
use crate::program::{Mode, Program, Recorder};
use crate::sampler::{NO_TOKEN, Sampling};
use crate::session::Session;
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
    /// f16 or f32: how keys and values are stored.
    pub kv: Element,
    /// KV pages of 16 positions; 0 takes what `sequences` of `context` positions fill.
    pub pages: usize,
    /// Most bytes of one binding, when less than the device allows.
    pub binding: usize,
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
            binding: usize::MAX,
        }
    }
}

/// Bytes on the device.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Plan {
    /// Weights and tables.
    pub weights: usize,
    /// KV pages.
    pub kv: usize,
    /// Activations, inputs and results of a step.
    pub activations: usize,
}

/// Most sequences that the decode program runs; more go through the prefill program.
const DECODE: usize = 8;

/// A loaded model.
pub struct Engine {
    config: Config,
    memory: Memory,
    io: Io,
    pool: PagePool,
    prefill: Program,
    decode: Program,
    device: Device,
}

enum Device {
    Gpu(Box<OnGpu>),
    Cpu { host: Vec<Host> },
}

struct OnGpu {
    gpu: Gpu,
    buffers: Buffers,
    prefill: Prepared,
    decode: Prepared,
}

impl Engine {
    /// Loads a checkpoint. Calls `progress` with bytes uploaded and bytes in all.
    pub fn load(weights: &Weights, options: &EngineOptions, progress: impl FnMut(usize, usize)) -> Result<Self> {
        let gpu = match &options.backend {
            Backend::Gpu(options) => Some(Gpu::new(options)?),
            Backend::Cpu => None,
        };
        let caps = gpu.as_ref().map(|g| g.caps().clone());
        Self::load_on(weights, options, gpu, caps.as_ref(), progress)
    }

    /// Loads a checkpoint on `gpu`, or on the CPU, with the programs that a device with `caps` runs.
    fn load_on(
        weights: &Weights,
        options: &EngineOptions,
        gpu: Option<Gpu>,
        caps: Option<&Caps>,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Self> {
        let config = Config::read(weights)?;
        let context = if options.context == 0 { config.context } else { options.context };
        let pages = if options.pages == 0 { options.sequences * context.div_ceil(PAGE) } else { options.pages };
        let capacity = Capacity {
            tokens: options.batch,
            outputs: options.sequences.max(16).min(options.batch),
            sequences: options.sequences,
            context,
            pages,
            kv: options.kv,
            binding: caps.map_or(usize::MAX, |caps| caps.max_binding).min(options.binding),
        };
        check(&capacity, &config)?;
        let mut memory = Memory::new(capacity);
        if caps.is_some_and(|caps| caps.kind != Kind::Software) {
            memory.tile = Tile::HARDWARE;
        }
        let io = Io::declare(&config, &mut memory);
        let model = models::declare(&config, weights, &mut memory)?;
        let record = |mode| {
            let mut r = Recorder::new(&memory, mode);
            model.record(&io, &mut r);
            r.sample(io.logits, io.sampling, io.ids);
            r.finish()
        };
        let (prefill, decode) = (record(Mode::Prefill), record(Mode::Decode));
        let device = match gpu {
            Some(gpu) => {
                let total = memory.tensors().iter().map(|t| t.bytes()).sum();
                let mut done = 0;
                let buffers = gpu.allocate(&memory, |_, bytes| {
                    done += bytes;
                    progress(done, total);
                })?;
                memory.forget_values();
                let mut prepared = gpu.prepare(&buffers, &[&prefill, &decode])?.into_iter();
                let (Some(prefill), Some(decode)) = (prepared.next(), prepared.next()) else { unreachable!() };
                Device::Gpu(Box::new(OnGpu { gpu, buffers, prefill, decode }))
            }
            None => Device::Cpu { host: memory.tensors().iter().map(|t| t.host()).collect::<Result<_>>()? },
        };
        Ok(Self { config, memory, io, pool: PagePool::new(pages), prefill, decode, device })
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

    /// Bytes on the device.
    pub fn plan(&self) -> Plan {
        let mut plan = Plan::default();
        for t in self.memory.tensors() {
            *match (t.element, t.bound) {
                (Element::Weight(_), _) => &mut plan.weights,
                _ if t.name.ends_with("_pages") => &mut plan.kv,
                (_, None) if t.is_table => &mut plan.weights,
                _ => &mut plan.activations,
            } += t.bytes();
        }
        plan
    }

    /// Pages that no session holds.
    pub fn free_pages(&self) -> usize {
        self.pool.n_free()
    }

    /// An empty session.
    pub fn session(&self) -> Session {
        Session::new(&self.pool)
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
            let n_outputs = engine.run(sessions, &counts, &outputs)?;
            if n_outputs == 0 {
                return Ok(vec![None; sessions.len()]);
            }
            let mut ids = engine.read(engine.io.ids, 0, n_outputs)?.into_iter();
            let sampled: Vec<_> = done.iter().map(|done| done.then(|| ids.next()).flatten()).collect();
            if sampled.contains(&Some(NO_TOKEN)) {
                let expected = "at least one finite number";
                return Err(Error::request("logits", expected, "none: the model or the device computes NaN"));
            }
            Ok(sampled)
        })?;
        for (s, id) in sessions.iter_mut().zip(&sampled) {
            s.push(id.as_slice());
        }
        Ok(sampled)
    }

    /// Computes the pending tokens of a session and returns the logits after each of them, in as many steps as it takes.
    pub fn logits(&mut self, session: &mut Session) -> Result<Vec<Vec<f32>>> {
        session.reopen();
        let mut rows = Vec::new();
        while !session.pending().is_empty() {
            let n = session.pending().len().min(self.memory.capacity.outputs);
            rows.extend(self.attempt(&mut [session], |engine, sessions| {
                engine.run(sessions, &[n], &[n])?;
                engine.last_logits(n)
            })?);
        }
        Ok(rows)
    }

    /// The first `rows` rows of logits of the last step: one for each session that got a token, in their order.
    pub fn last_logits(&self, rows: usize) -> Result<Vec<Vec<f32>>> {
        let v = self.config.vocab;
        let logits = self.read(self.io.logits, 0, rows * stride(v))?;
        Ok(logits.chunks(stride(v)).map(|row| row[..v].iter().map(|bits| f32::from_bits(*bits)).collect()).collect())
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
                s.table.truncate(len);
            }
        }
        result
    }

    /// Tokens of each session in the next step.
    fn shares(&self, sessions: &[&mut Session]) -> Vec<usize> {
        let mut left = self.memory.capacity.tokens;
        let mut share = |s: &Session, decode: bool| {
            let pending = s.pending().len();
            let n = if (pending == 1) == decode { pending.min(left) } else { 0 };
            left -= n;
            n
        };
        let decode: Vec<_> = sessions.iter().map(|s| share(s, true)).collect();
        sessions.iter().zip(decode).map(|(s, n)| n + share(s, false)).collect()
    }

    /// Computes `counts[i]` pending tokens of session i and the logits of the last `outputs[i]` of them; samples from each.
    /// Within [`attempt`](Self::attempt).
    fn run(&mut self, sessions: &mut [&mut Session], counts: &[usize], outputs: &[usize]) -> Result<usize> {
        let capacity = self.memory.capacity;
        let active = counts.iter().filter(|n| **n > 0).count();
        if active > capacity.sequences {
            return Err(Error::request("sessions of a step", format!("at most {}", capacity.sequences), active));
        }
        let mut needed = 0;
        for (s, n) in sessions.iter().zip(counts) {
            let tokens = s.table.len() + n;
            if tokens > capacity.context {
                return Err(Error::ContextFull { tokens: s.tokens().len(), context: capacity.context });
            }
            if let Some(id) = s.pending()[..*n].iter().find(|id| **id as usize >= self.config.vocab) {
                return Err(Error::request("token", format!("an id below {}", self.config.vocab), id));
            }
            let Sampling { temperature, top_p, .. } = s.sampling;
            if !(temperature.is_finite() && temperature >= 0.0) {
                return Err(Error::request("temperature", "a finite number, at least 0", temperature));
            }
            if !(0.0..=1.0).contains(&top_p) {
                return Err(Error::request("top-p", "0 to 1", top_p));
            }
            needed += s.table.pages_for(*n);
        }
        let free = self.free_pages();
        if needed > free {
            return Err(Error::OutOfPages { needed, free });
        }
        let mut inputs = Inputs::default();
        for ((s, n), n_outputs) in sessions.iter_mut().zip(counts).zip(outputs) {
            if *n > 0 {
                let from = s.table.len();
                s.table.append(*n)?;
                inputs.add(s, from, *n_outputs);
            }
        }
        if inputs.tokens.is_empty() {
            return Ok(0);
        }
        self.write(&inputs)?;
        let step = inputs.step();
        let decode = inputs.mode() == Mode::Decode;
        match &mut self.device {
            Device::Gpu(on) => {
                let OnGpu { gpu, buffers, prefill, decode: d } = &mut **on;
                gpu.run(buffers, if decode { d } else { prefill }, &step)?;
            }
            Device::Cpu { host } => if decode { &self.decode } else { &self.prefill }.run_reference(&step, host),
        }
        Ok(inputs.outputs.len())
    }

    fn write(&mut self, inputs: &Inputs) -> Result<()> {
        let io = &self.io;
        self.device.write(io.attention.tokens, inputs.tokens.as_flattened())?;
        self.device.write(io.attention.sequences, inputs.sequences.as_flattened())?;
        self.device.write(io.attention.tiles, inputs.tiles.as_flattened())?;
        self.device.write(io.attention.pages, inputs.pages.as_flattened())?;
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

impl Device {
    fn write(&mut self, t: Tensor, words: &[u32]) -> Result<()> {
        match self {
            Device::Gpu(on) => on.gpu.write(&on.buffers, t, bytemuck::cast_slice(words)),
            Device::Cpu { host } => {
                host[t.0].u32_mut()[..words.len()].copy_from_slice(words);
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
    sampling: Vec<[u32; 4]>,
}

impl Inputs {
    /// Adds the positions of `s` from `from` on, with logits of the last `n_outputs`.
    fn add(&mut self, s: &Session, from: usize, n_outputs: usize) {
        let (sequence, first, list) = (self.sequences.len() as u32, self.tokens.len(), self.pages.len());
        let to = s.table.len();
        let token = |p: usize| [s.tokens()[p], p as u32, s.table.slot(p), sequence];
        self.tokens.extend((from..to).map(token));
        s.attention.list(&s.table, &mut self.pages);
        self.sequences.push([list, self.pages.len() - list, first, to - from].map(|n| n as u32));
        for tile in (0..to - from).step_by(AttentionDims::TILE) {
            self.tiles.push([sequence, (first + tile) as u32, (to - from - tile).min(AttentionDims::TILE) as u32, 0]);
        }
        for p in to - n_outputs..to {
            self.outputs.push((first + p - from) as u32);
            self.sampling.push(s.sampling.draw(p + 1).to_words());
        }
    }

    /// The program that runs them.
    fn mode(&self) -> Mode {
        let decode = self.tokens.len() == self.sequences.len() && self.tokens.len() <= DECODE;
        if decode { Mode::Decode } else { Mode::Prefill }
    }

    fn step(&self) -> Step {
        Step {
            n_tokens: self.tokens.len() as u32,
            n_outputs: self.outputs.len() as u32,
            n_sequences: self.sequences.len() as u32,
            n_tiles: self.tiles.len() as u32,
            max_pages: self.sequences.iter().map(|s| s[1]).max().unwrap_or(0),
            padding: [0; 3],
        }
    }
}

/// Refuses sizes that no step could use.
fn check(c: &Capacity, config: &Config) -> Result<()> {
    let at_least = |what: &str, n: usize, least: usize| match n {
        n if n >= least => Ok(()),
        n => Err(Error::request(what, format!("at least {least}"), n)),
    };
    at_least("context", c.context, 1)?;
    at_least("sequences", c.sequences, 1)?;
    at_least("batch", c.tokens, c.sequences)?;
    at_least("pages", c.pages, c.of(Count::Pages))?;
    // Page slots and list entries are u32 on the device.
    if c.pages > u32::MAX as usize / PAGE / 2 {
        return Err(Error::request("pages", format!("at most {}", u32::MAX as usize / PAGE / 2), c.pages));
    }
    // The table of rotary angles is one binding; a file may claim any context.
    let fit = c.binding.min(1 << 30) / (4 * config.attention.head_dim);
    if c.context > fit {
        return Err(Error::request("context", format!("at most {fit} positions"), c.context));
    }
    match c.kv {
        Element::F16 | Element::F32 => Ok(()),
        other => Err(Error::request("KV format", "f16 or f32", format!("{other:?}"))),
    }
}
