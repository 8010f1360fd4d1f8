//! `inspect`: what a checkpoint holds, and what it becomes on a device. Nothing is allocated there.

mod heads;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::{Map, Number, Value as Json, json};

use super::chat::CONTEXT;
use super::model::{EngineArgs, ModelArgs, tensor_bytes};
use super::output::{one_line, print, print_json};
use crate::engine::{Plan, Recorded, available_memory, expect_fits};
use crate::error::Result;
use crate::gpu::{Caps, Kind};
use crate::kernel::{Access, Const, Count, Extent};
use crate::memory::Memory;
use crate::models::Config;
use crate::program::{Dispatch, Mode, Program};
use crate::weights::{TensorEntry, Value, Weights};

/// Show what is in a model file, what memory it takes and what it runs
#[derive(Args)]
pub struct Options {
    /// The model; the same as -m
    #[arg(value_name = "FILE|NAME", conflicts_with = "model")]
    file: Option<String>,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Show the recorded program too, one dispatch a line: kernel, constants, tensors by binding, workgroups
    #[arg(long, value_enum, value_name = "PROGRAM")]
    program: Option<Which>,
    /// Run a text through the model instead, and show how its heads do with anchors of the far past: effective rank of their keys,
    /// error with each width, what is chosen by --aoc-gate, and how often one row answers alone
    #[arg(long, value_name = "TEXT_FILE", conflicts_with = "program")]
    aoc: Option<PathBuf>,
    /// Draw that
    #[arg(long, value_name = "FILE", requires = "aoc")]
    svg: Option<PathBuf>,
    /// Print one JSON object, with all of the metadata
    #[arg(long)]
    json: bool,
}

/// A program of a model.
#[derive(Clone, Copy, ValueEnum)]
enum Which {
    Decode,
    Batch,
    Prefill,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let weights = match &options.file {
        Some(file) => ModelArgs::named(file).open()?,
        None => options.model.open()?,
    };
    if let Some(text) = &options.aoc {
        return heads::run(&weights, &options.engine, text, options.svg.as_ref(), options.json);
    }
    let planned = Planned::new(options, &weights);
    match options.json {
        true => print_json(&json(options, &weights, planned))?,
        false => print(&text(options, &weights, planned))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A model as it would be loaded.
struct Planned {
    recorded: Recorded,
    device: String,
    /// Bytes, where they are known.
    available: Option<usize>,
    /// Why it would be refused, if so.
    refused: Option<String>,
}

impl Planned {
    fn new(options: &Options, weights: &Weights) -> Result<Self> {
        let (sizes, caps) = options.engine.planned(weights, CONTEXT)?;
        let recorded = Recorded::new(weights, &sizes, caps.as_ref())?;
        let in_system = caps.as_ref().is_none_or(|caps| caps.kind == Kind::Software);
        Ok(Self {
            recorded,
            device: caps.as_ref().map_or("CPU interpreter".into(), Caps::to_string),
            available: sizes.memory.or_else(|| if in_system { available_memory() } else { None }),
            refused: expect_fits(weights, &sizes, caps.as_ref()).err().map(|e| e.to_string()),
        })
    }

    fn program(&self, which: Which) -> &Program {
        &self.recorded.programs[match which {
            Which::Decode => Mode::Decode,
            Which::Batch => Mode::Batch,
            Which::Prefill => Mode::Prefill,
        }]
    }
}

fn text(options: &Options, weights: &Weights, planned: Result<Planned>) -> String {
    let mut out = String::new();
    write_text(&mut out, options, weights, planned).expect("writing to a string");
    out
}

fn write_text(
    out: &mut String,
    options: &Options,
    weights: &Weights,
    planned: Result<Planned>,
) -> Result<(), std::fmt::Error> {
    let m = weights.metadata();
    writeln!(out, "{}", weights.path().display())?;
    writeln!(out, "\nmetadata: {} fields", m.keys().len())?;
    let width = m.keys().map(|key| key.chars().count()).max().unwrap_or(0).min(48);
    for (key, value) in m.keys().filter_map(|key| Some((key, m.value(key)?))) {
        writeln!(out, "  {:width$}  {}", shown(key), abbreviated(value))?;
    }
    writeln!(out, "\ntensors: {}, {} bytes", weights.tensors().len(), tensor_bytes(weights))?;
    let width = weights.tensors().map(|t| t.name.chars().count()).max().unwrap_or(0).min(48);
    for t in weights.tensors() {
        let dims: Vec<_> = t.dims.iter().map(u64::to_string).collect();
        writeln!(
            out,
            "  {:width$}  {:8}  {:>16}  {:>12} bytes",
            shown(t.name),
            t.format_name,
            dims.join(" × "),
            t.bytes.len()
        )?;
    }
    writeln!(out, "\nformats")?;
    for (name, format) in formats(weights) {
        let note = if format.supported { "" } else { "  (not supported)" };
        let Format { tensors, elements, bytes, .. } = format;
        writeln!(out, "  {name:8}  {tensors:>6} tensors  {elements:>14} elements  {bytes:>14} bytes{note}")?;
    }
    let planned = match planned {
        Ok(planned) => planned,
        Err(e) => return writeln!(out, "\ndoes not run: {}", one_line(&e.to_string())),
    };
    let Planned { recorded: Recorded { config, memory, .. }, device, available, refused } = &planned;
    let Config { architecture, layers, hidden, ffn, vocab, attention: a, context, .. } = config;
    writeln!(
        out,
        "\nmodel: {architecture}, {layers} layers, hidden {hidden}, feed-forward {ffn}, {} heads of {}, {} of keys and values, \
         vocabulary {vocab}, trained for {context} tokens",
        a.heads, a.head_dim, a.kv_heads
    )?;
    writeln!(out, "\nmemory on {}", one_line(device))?;
    let Plan { weights, kv, activations } = planned.recorded.plan();
    writeln!(out, "  {:>14} bytes  weights", weights)?;
    writeln!(out, "  {kv:>14} bytes  KV of {} tokens, {}", memory.capacity.context, kv_format(memory))?;
    writeln!(out, "  {activations:>14} bytes  activations of a batch of {} tokens", memory.capacity.tokens)?;
    writeln!(out, "  {:>14} bytes  in all", weights + kv + activations)?;
    if let Some(available) = available {
        writeln!(out, "  {available:>14} bytes  available")?;
    }
    if let Some(refused) = refused {
        writeln!(out, "  refused: {}", one_line(refused))?;
    }
    if let Some(which) = options.program {
        let Program { dispatches } = planned.program(which);
        writeln!(out, "\nprogram: {} dispatches", dispatches.len())?;
        for (i, d) in dispatches.iter().enumerate() {
            let constants: Vec<_> = constants(d).map(|(name, value)| format!("{name}={value}")).collect();
            let tensors: Vec<_> = tensors(d, memory).map(|(name, tensor)| format!("{name}={tensor}")).collect();
            let (constants, tensors) = (constants.join(" "), tensors.join(" "));
            writeln!(out, "  {i:>4} {}  {constants}  {tensors}  [{}]", d.kernel.name, d.groups.map(groups).join(", "))?;
        }
    }
    Ok(())
}

fn json(options: &Options, weights: &Weights, planned: Result<Planned>) -> Json {
    let m = weights.metadata();
    let fields = m.keys().filter_map(|key| Some((key.to_string(), complete(m.value(key)?))));
    let tensors = weights.tensors().map(|t| {
        let bytes = known_bytes(&t);
        json!({ "name": t.name, "dims": t.dims, "format": t.format_name, "bytes": bytes })
    });
    let formats = formats(weights).into_iter().map(|(name, f)| {
        let value = json!({ "tensors": f.tensors, "elements": f.elements, "bytes": f.bytes, "supported": f.supported });
        (name, value)
    });
    let mut all = json!({
        "path": weights.path(),
        "bytes": tensor_bytes(weights),
        "metadata": fields.collect::<Map<_, _>>(),
        "tensors": tensors.collect::<Vec<_>>(),
        "formats": formats.collect::<Map<_, _>>(),
    });
    let planned = match planned {
        Ok(planned) => planned,
        Err(e) => {
            all["error"] = json!(e.to_string());
            return all;
        }
    };
    let Planned { recorded: Recorded { config, memory, .. }, device, available, refused } = &planned;
    let a = &config.attention;
    all["model"] = json!({
        "architecture": config.architecture,
        "layers": config.layers,
        "hidden": config.hidden,
        "feed_forward": config.ffn,
        "heads": a.heads,
        "kv_heads": a.kv_heads,
        "head_dim": a.head_dim,
        "vocabulary": config.vocab,
        "context": config.context,
    });
    let plan = planned.recorded.plan();
    all["memory"] = json!({
        "device": device,
        "context": memory.capacity.context,
        "batch": memory.capacity.tokens,
        "kv_format": kv_format(memory),
        "weights": plan.weights,
        "kv": plan.kv,
        "activations": plan.activations,
        "total": plan.total(),
        "available": available,
        "refused": refused,
    });
    if let Some(which) = options.program {
        let dispatches = planned.program(which).dispatches.iter().map(|d| {
            json!({
                "kernel": d.kernel.name,
                "constants": constants(d).collect::<Map<_, _>>(),
                "tensors": tensors_json(d, memory),
                "groups": d.groups.map(groups),
            })
        });
        all["program"] = dispatches.collect();
    }
    all
}

/// Tensors of one format together.
struct Format {
    tensors: usize,
    elements: u64,
    bytes: usize,
    supported: bool,
}

fn formats(weights: &Weights) -> BTreeMap<String, Format> {
    let mut formats = BTreeMap::new();
    for t in weights.tensors() {
        let format = formats.entry(t.format_name.to_string()).or_insert(Format {
            tensors: 0,
            elements: 0,
            bytes: 0,
            supported: t.format.is_some(),
        });
        format.tensors += 1;
        format.elements += t.dims.iter().product::<u64>();
        format.bytes += t.bytes.len();
    }
    formats
}

/// `None` where a block of the format is of unknown size.
fn known_bytes(t: &TensorEntry) -> Option<usize> {
    (!t.bytes.is_empty()).then_some(t.bytes.len())
}

fn kv_format(memory: &Memory) -> &'static str {
    memory.capacity.kv.kv_name().unwrap_or_default()
}

fn constants(d: &Dispatch) -> impl Iterator<Item = (String, Json)> {
    d.spec.constants().iter().map(|(name, value)| {
        let value = match *value {
            Const::U32(value) => value.into(),
            Const::F32(bits) => float(f32::from_bits(bits).into()),
        };
        (name.to_string(), value)
    })
}

/// Names of bindings and of the tensors bound.
fn tensors<'a>(d: &'a Dispatch, memory: &'a Memory) -> impl Iterator<Item = (&'static str, &'a str)> {
    let bindings = d.kernel.bindings.iter().filter(|(_, access)| *access != Access::Step);
    bindings.zip(&d.tensors).map(|((name, _), t)| (*name, memory.desc(*t).name.as_str()))
}

fn tensors_json(d: &Dispatch, memory: &Memory) -> Json {
    tensors(d, memory).map(|(binding, tensor)| (binding.to_string(), json!(tensor))).collect::<Map<_, _>>().into()
}

/// Workgroups along one axis.
fn groups(extent: Extent) -> String {
    match extent {
        Extent::Fixed(n) => n.to_string(),
        Extent::Per(count, each) => {
            let count = match count {
                Count::Penalized => "penalized outputs",
                Count::Logprobs => "outputs with logprobs",
                Count::Tokens => "tokens",
                Count::Outputs => "outputs",
                Count::Sequences => "sequences",
                Count::Tiles => "tiles",
                Count::Pages => "pages",
                Count::Rows => "rows",
                Count::Segment => "segment",
                Count::Segments => "segments",
            };
            if each == 1 { count.into() } else { format!("{count}/{each}") }
        }
    }
}

/// Elements of an array and characters of a text that are shown.
const SHOWN: usize = 4;
const SHOWN_TEXT: usize = 60;

/// A value in one line.
fn abbreviated(value: Value) -> String {
    match value {
        Value::String(bytes) => {
            let text = String::from_utf8_lossy(bytes);
            let short: String = text.chars().take(SHOWN_TEXT).collect();
            let more = if short.len() < text.len() { "…" } else { "" };
            format!("{short:?}{more}")
        }
        Value::Array(array) => {
            let first: Vec<_> = array.iter().take(SHOWN).map(abbreviated).collect();
            let more = if array.len() > SHOWN { ", …" } else { "" };
            format!("[{}{more}] of {}", first.join(", "), array.len())
        }
        other => complete(other).to_string(),
    }
}

fn complete(value: Value) -> Json {
    match value {
        Value::Integer(value) => Number::from_i128(value).map_or_else(|| value.to_string().into(), Json::Number),
        Value::Float(value) => float(value),
        Value::Bool(value) => value.into(),
        Value::String(bytes) => String::from_utf8_lossy(bytes).into(),
        Value::Array(array) => array.iter().map(complete).collect(),
    }
}

/// As short as its 32 bits allow where it has no more; what is no number is a string.
fn float(value: f64) -> Json {
    let narrow = value as f32;
    let short = if f64::from(narrow) == value { narrow.to_string().parse().unwrap_or(value) } else { value };
    Number::from_f64(short).map_or_else(|| value.to_string().into(), Json::Number)
}

/// A name of a file without what would steer the terminal.
fn shown(name: &str) -> String {
    name.escape_debug().to_string()
}
