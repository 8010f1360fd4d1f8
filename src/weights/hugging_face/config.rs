//! `config.json`: transformers' fields to the metadata of GGUF files.
//!
//! Source: the configuration classes of transformers, whose defaults hold for fields that files leave out, and the keys of
//! gguf-py/gguf/constants.py.

use std::f64::consts::PI;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};

use super::names::Names;
use crate::Result;
use crate::weights::safetensors::json_fault;
use crate::weights::{Fault, Shown};

/// What a configuration says.
pub struct Model {
    /// Metadata by key.
    pub fields: Vec<(String, Field)>,
    /// A file of the tables that GGUF files hold as tensors: factors of rotary frequencies.
    pub tables: Vec<u8>,
    pub names: Names,
    pub vocab: Option<u64>,
    /// Whether the output is the embedding, where it is said.
    pub tied: Option<bool>,
    /// Norms multiply by 1 + w.
    pub norms_lack_one: bool,
}

pub enum Field {
    Integer(u64),
    Float(f64),
    Text(String),
}

/// `model_type` of the configurations that are read, and the architecture of GGUF files that each is.
const TYPES: &[(&str, &str)] = &[
    ("gemma2", "gemma2"),
    ("gemma3", "gemma3"),
    ("gemma3_text", "gemma3"),
    ("llama", "llama"),
    ("mistral", "llama"),
    ("phi3", "phi3"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("smollm3", "smollm3"),
];

/// More than any model has; bounds loops over layers.
const MAX_LAYERS: u64 = 1 << 12;

/// Reads the text of `config.json`.
pub fn read(text: &str, path: &Path) -> Result<Model> {
    let outer: Config = serde_json::from_str(text).map_err(|e| json_fault(e).of(path))?;
    outer.model().map_err(|fault| fault.of(path))
}

/// The fields that matter; those of a model that sees are in `text_config`.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Config {
    model_type: Option<String>,
    text_config: Option<Box<Config>>,
    quantization_config: Option<IgnoredAny>,
    vocab_size: Option<u64>,
    hidden_size: Option<u64>,
    intermediate_size: Option<u64>,
    num_hidden_layers: Option<u64>,
    num_attention_heads: Option<u64>,
    num_key_value_heads: Option<u64>,
    head_dim: Option<u64>,
    hidden_act: Option<String>,
    hidden_activation: Option<String>,
    rms_norm_eps: Option<f64>,
    tie_word_embeddings: Option<bool>,
    max_position_embeddings: Option<u64>,
    original_max_position_embeddings: Option<u64>,
    rope_theta: Option<f64>,
    rope_local_base_freq: Option<f64>,
    rope_scaling: Option<Box<Rope>>,
    rope_parameters: Option<Box<Rope>>,
    partial_rotary_factor: Option<f64>,
    no_rope_layers: Option<List<u64>>,
    no_rope_layer_interval: Option<u64>,
    sliding_window: Option<u64>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<u64>,
    #[serde(alias = "_sliding_window_pattern")]
    sliding_window_pattern: Option<u64>,
    layer_types: Option<List<LayerType>>,
    query_pre_attn_scalar: Option<f64>,
    attn_logit_softcapping: Option<f64>,
    final_logit_softcapping: Option<f64>,
}

/// `rope_scaling`, or `rope_parameters` of later files, which may have one for each type of layers.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Rope {
    #[serde(rename = "type")]
    kind: Option<String>,
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    factor: Option<f64>,
    original_max_position_embeddings: Option<u64>,
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    short_factor: Option<List<f64>>,
    long_factor: Option<List<f64>>,
    full_attention: Option<Box<Rope>>,
    sliding_attention: Option<Box<Rope>>,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "snake_case")]
enum LayerType {
    FullAttention,
    SlidingAttention,
}

impl Config {
    fn model(mut self) -> Result<Model, Fault> {
        let model_type = self.model_type.take().ok_or_else(|| missing("model_type", "a string"))?;
        let Some((_, architecture)) = TYPES.iter().find(|(name, _)| *name == model_type) else {
            let names: Vec<_> = TYPES.iter().map(|(name, _)| *name).collect();
            let found = format!("\"{}\"", Shown(model_type.as_bytes()));
            return Err(Fault::new("model_type", format!("one of {}", names.join(", ")), found));
        };
        if self.quantization_config.is_some() {
            return Err(Fault::new("quantization_config", "none: weights of F32, F16 or BF16", "one"));
        }
        if model_type == "llama" {
            // Not a field of its class.
            self.sliding_window = None;
        }
        let multimodal = model_type == "gemma3";
        match self.text_config {
            Some(text) if multimodal => {
                let tied = text.tie_word_embeddings.or(self.tie_word_embeddings);
                Config { tie_word_embeddings: tied, ..*text }.text_model(architecture, multimodal)
            }
            None if multimodal => Err(missing("text_config", "an object")),
            _ => self.text_model(architecture, multimodal),
        }
    }

    fn text_model(mut self, architecture: &'static str, multimodal: bool) -> Result<Model, Fault> {
        let gemma = architecture.starts_with("gemma");
        if architecture == "gemma3" {
            self.fill_in_gemma3();
        }
        let layers = required(self.num_hidden_layers, "num_hidden_layers")?;
        if layers > MAX_LAYERS {
            return Err(Fault::new("num_hidden_layers", format!("at most {MAX_LAYERS}"), layers));
        }
        let hidden = required(self.hidden_size, "hidden_size")?;
        let heads = required(self.num_attention_heads, "num_attention_heads")?;
        if heads == 0 || heads > hidden {
            return Err(Fault::new("num_attention_heads", format!("1 to hidden_size {hidden}"), heads));
        }
        let head_dim = self.head_dim.unwrap_or(hidden / heads);
        let context = required(self.max_position_embeddings, "max_position_embeddings")?;
        self.expect_activation(gemma)?;

        let mut out = Fields { architecture, fields: Vec::new() };
        out.fields.push(("general.architecture".into(), Field::Text(architecture.into())));
        out.integer("block_count", layers);
        out.integer("embedding_length", hidden);
        out.integer("feed_forward_length", required(self.intermediate_size, "intermediate_size")?);
        out.integer("context_length", context);
        out.integer("attention.head_count", heads);
        out.integer("attention.head_count_kv", self.num_key_value_heads.unwrap_or(heads));
        out.integer("attention.key_length", head_dim);
        out.integer("attention.value_length", head_dim);
        out.float("attention.layer_norm_rms_epsilon", required_number(self.rms_norm_eps, "rms_norm_eps")?);
        if gemma {
            self.expect_query_scale(architecture, hidden / heads, head_dim)?;
        }
        for (name, cap) in [
            ("attn_logit_softcapping", self.attn_logit_softcapping),
            ("final_logit_softcapping", self.final_logit_softcapping),
        ] {
            match cap {
                Some(cap) => out.float(name, cap),
                // Absent metadata mean these models' own caps.
                None if architecture == "gemma2" => return Err(missing(name, "a number")),
                None => {}
            }
        }
        self.window(architecture, layers, &mut out)?;
        if architecture == "smollm3" {
            self.expect_every_fourth_without_rope()?;
        }
        let tables = self.rope(architecture, head_dim, context, &mut out)?;
        let tied = self.tie_word_embeddings;
        Ok(Model {
            fields: out.fields,
            tables: file(&tables),
            names: Names {
                layers,
                post_norms: gemma,
                multimodal,
                tied: tied.unwrap_or(gemma || architecture == "smollm3"),
            },
            vocab: self.vocab_size,
            tied,
            norms_lack_one: gemma,
        })
    }

    /// Files of this model leave out what is the default of its class.
    fn fill_in_gemma3(&mut self) {
        self.hidden_size.get_or_insert(2304);
        self.intermediate_size.get_or_insert(9216);
        self.num_hidden_layers.get_or_insert(26);
        self.num_attention_heads.get_or_insert(8);
        self.num_key_value_heads.get_or_insert(4);
        self.head_dim.get_or_insert(256);
        self.max_position_embeddings.get_or_insert(131_072);
        self.rms_norm_eps.get_or_insert(1e-6);
        self.rope_theta.get_or_insert(1e6);
        self.rope_local_base_freq.get_or_insert(1e4);
        self.sliding_window.get_or_insert(4096);
    }

    fn expect_activation(&self, gemma: bool) -> Result<(), Fault> {
        let expected = if gemma { "gelu_pytorch_tanh" } else { "silu" };
        match self.hidden_activation.as_ref().or(self.hidden_act.as_ref()) {
            Some(found) if found != expected => {
                Err(Fault::new("hidden_act", expected, format!("\"{}\"", Shown(found.as_bytes()))))
            }
            _ => Ok(()),
        }
    }

    /// Metadata have no key for the scale of queries: the number of layers implies it.
    fn expect_query_scale(&self, architecture: &str, even: u64, head_dim: u64) -> Result<(), Fault> {
        let is_27b = self.num_hidden_layers == Some(if architecture == "gemma2" { 46 } else { 62 });
        let implied = if is_27b { even } else { head_dim } as f64;
        let found = self.query_pre_attn_scalar.unwrap_or(256.0);
        match found == implied {
            true => Ok(()),
            false => Err(Fault::new("query_pre_attn_scalar", format!("{implied} in a model of this size"), found)),
        }
    }

    fn expect_every_fourth_without_rope(&self) -> Result<(), Fault> {
        let regular = |l: usize, rotated: u64| (rotated != 0) != (l + 1).is_multiple_of(4);
        let listed = match &self.no_rope_layers {
            Some(List(list)) => list.iter().enumerate().all(|(l, rotated)| regular(l, *rotated)),
            None => self.no_rope_layer_interval.is_none_or(|interval| interval == 4),
        };
        match listed {
            true => Ok(()),
            false => Err(Fault::new("no_rope_layers", "every fourth layer, and no other", "another list")),
        }
    }

    /// Which layers see a window of the last positions only.
    fn window(&self, architecture: &str, layers: u64, out: &mut Fields) -> Result<(), Fault> {
        let gemma = architecture.starts_with("gemma");
        // The last layer of so many sees everything.
        let period = self.sliding_window_pattern.unwrap_or(if architecture == "gemma2" { 2 } else { 6 });
        if let Some(List(types)) = self.layer_types.as_ref().filter(|List(types)| types.len() as u64 != layers) {
            return Err(Fault::new("layer_types", format!("{layers} by num_hidden_layers"), types.len()));
        }
        let windowed = |l: u64| match (&self.layer_types, architecture) {
            (Some(List(types)), _) => types[l as usize] == LayerType::SlidingAttention,
            _ if gemma => period == 0 || !(l + 1).is_multiple_of(period),
            (None, "qwen2" | "qwen3" | "smollm3") => {
                self.use_sliding_window == Some(true) && l >= self.max_window_layers.unwrap_or(0)
            }
            _ => self.sliding_window.is_some() && self.use_sliding_window != Some(false),
        };
        if !(0..layers).any(windowed) {
            if gemma {
                out.integer("attention.sliding_window", 0);
            }
            return Ok(());
        }
        if let Some(full) = (0..layers).find(|l| !windowed(*l)) {
            if (0..layers).any(|l| windowed(l) == (l + 1).is_multiple_of(full + 1)) {
                let expected = "windows in all layers, none, or all but each n-th";
                return Err(Fault::new("layer_types", expected, "others"));
            }
            out.integer("attention.sliding_window_pattern", full + 1);
        }
        out.integer("attention.sliding_window", required(self.sliding_window, "sliding_window")?);
        Ok(())
    }

    /// Rotary frequencies: metadata, and the tables of factors.
    fn rope(&self, architecture: &str, head_dim: u64, context: u64, out: &mut Fields) -> Result<Tables, Fault> {
        let none = Rope::default();
        let given = self.rope_parameters.as_deref().or(self.rope_scaling.as_deref()).unwrap_or(&none);
        let rope = given.full_attention.as_deref().unwrap_or(given);
        let theta = rope.rope_theta.or(self.rope_theta).unwrap_or(1e4);
        out.float("rope.freq_base", theta);
        out.text("rope.pairs", "halves");
        if architecture == "gemma3" {
            let local = given.sliding_attention.as_ref().and_then(|local| local.rope_theta);
            out.float("rope.freq_base_swa", local.or(self.rope_local_base_freq).unwrap_or(1e4));
        }
        let part = rope.partial_rotary_factor.or(self.partial_rotary_factor).unwrap_or(1.0);
        let dims = (head_dim as f64 * part) as u64;
        if !(1..=MAX_DIMS).contains(&dims) || dims > head_dim {
            let found = format!("{part} of head_dim {head_dim}");
            return Err(Fault::new("partial_rotary_factor", format!("1 to {MAX_DIMS} dims of a head"), found));
        }
        if dims != head_dim {
            out.integer("rope.dimension_count", dims);
        }
        let original = rope.original_max_position_embeddings.or(self.original_max_position_embeddings);
        match rope.rope_type.as_deref().or(rope.kind.as_deref()) {
            None | Some("default") => {}
            Some("linear") => {
                out.text("rope.scaling.type", "linear");
                out.float("rope.scaling.factor", required_number(rope.factor, "rope_scaling: factor")?);
            }
            Some("yarn") => self.yarn(rope, original.unwrap_or(context), out)?,
            Some("llama3") => return rope.llama3(theta, dims, original),
            Some("longrope" | "su") => return rope.longrope(context, original, out),
            Some(kind) => {
                let found = format!("\"{}\"", Shown(kind.as_bytes()));
                let expected = "one of default, linear, yarn, llama3, longrope";
                return Err(Fault::new("rope_scaling: rope_type", expected, found));
            }
        }
        Ok(Tables::new())
    }

    fn yarn(&self, rope: &Rope, original: u64, out: &mut Fields) -> Result<(), Fault> {
        let factor = required_number(rope.factor, "rope_scaling: factor")?;
        if rope.truncate == Some(false) {
            return Err(Fault::new("rope_scaling: truncate", "true", "false"));
        }
        out.text("rope.scaling.type", "yarn");
        out.float("rope.scaling.factor", factor);
        out.integer("rope.scaling.original_context_length", original);
        for (key, beta) in [("yarn_beta_fast", rope.beta_fast), ("yarn_beta_slow", rope.beta_slow)] {
            if let Some(beta) = beta {
                out.float(&format!("rope.scaling.{key}"), beta);
            }
        }
        let temperature = |scale: f64| if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 };
        let attention = rope.attention_factor.or(match (rope.mscale, rope.mscale_all_dim) {
            (Some(scale), Some(all)) if scale != 0.0 && all != 0.0 => Some(temperature(scale) / temperature(all)),
            _ => None,
        });
        if let Some(attention) = attention {
            // The metadata's is a factor to YaRN's own temperature.
            out.float("rope.scaling.attn_factor", attention / temperature(1.0));
        }
        Ok(())
    }
}

impl Rope {
    /// Frequencies divided by `factor` where they turn less than `low_freq_factor` times in the original context, as they
    /// are from `high_freq_factor` times on, and a mixture of both between. Source: apply_scaling of
    /// meta-llama/llama-models, models/llama3.
    fn llama3(&self, theta: f64, dims: u64, original: Option<u64>) -> Result<Tables, Fault> {
        let factor = required_number(self.factor, "rope_scaling: factor")?;
        let low = required_number(self.low_freq_factor, "rope_scaling: low_freq_factor")?;
        let high = required_number(self.high_freq_factor, "rope_scaling: high_freq_factor")?;
        let original = required(original, "rope_scaling: original_max_position_embeddings")? as f64;
        if factor <= 0.0 || low >= high {
            let found = format!("factor {factor}, low_freq_factor {low}, high_freq_factor {high}");
            return Err(Fault::new("rope_scaling", "a factor above 0 and low below high", found));
        }
        let divisor = |pair: u64| {
            let turns = original * theta.powf(-2.0 * pair as f64 / dims as f64) / (2.0 * PI);
            let kept = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            (1.0 / (kept + (1.0 - kept) / factor)) as f32
        };
        Ok(vec![("rope_freqs.weight", (0..dims / 2).map(divisor).collect())])
    }

    fn longrope(&self, context: u64, original: Option<u64>, out: &mut Fields) -> Result<Tables, Fault> {
        let original = required(original, "original_max_position_embeddings")?;
        let factor = self.factor.unwrap_or(context as f64 / original as f64);
        let temperature = if factor > 1.0 { (1.0 + factor.ln() / (original as f64).ln()).sqrt() } else { 1.0 };
        out.text("rope.scaling.type", "longrope");
        out.integer("rope.scaling.original_context_length", original);
        out.float("rope.scaling.attn_factor", self.attention_factor.unwrap_or(temperature));
        let table = |factors: &Option<List<f64>>, name: &str| match factors {
            Some(List(factors)) => Ok(factors.iter().map(|factor| *factor as f32).collect()),
            None => Err(missing(name, "a list of numbers")),
        };
        Ok(vec![
            ("rope_factors_long.weight", table(&self.long_factor, "rope_scaling: long_factor")?),
            ("rope_factors_short.weight", table(&self.short_factor, "rope_scaling: short_factor")?),
        ])
    }
}

/// Tables by tensor name.
type Tables = Vec<(&'static str, Vec<f32>)>;

/// Dims of a head; bounds the tables.
const MAX_DIMS: u64 = 1 << 14;

/// A file of safetensors.
fn file(tables: &Tables) -> Vec<u8> {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, values) in tables {
        let start = data.len();
        data.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        let offsets = [start, data.len()];
        header.insert(
            (*name).into(),
            serde_json::json!({ "dtype": "F32", "shape": [values.len()], "data_offsets": offsets }),
        );
    }
    let header = serde_json::Value::Object(header).to_string();
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat()
}

/// Metadata of an architecture.
struct Fields {
    architecture: &'static str,
    fields: Vec<(String, Field)>,
}

impl Fields {
    fn push(&mut self, key: &str, field: Field) {
        self.fields.push((format!("{}.{key}", self.architecture), field));
    }

    fn integer(&mut self, key: &str, value: u64) {
        self.push(key, Field::Integer(value));
    }

    fn float(&mut self, key: &str, value: f64) {
        self.push(key, Field::Float(value));
    }

    fn text(&mut self, key: &str, value: &str) {
        self.push(key, Field::Text(value.into()));
    }
}

fn required(value: Option<u64>, name: &str) -> Result<u64, Fault> {
    value.ok_or_else(|| missing(name, "an integer"))
}

fn required_number(value: Option<f64>, name: &str) -> Result<f64, Fault> {
    value.ok_or_else(|| missing(name, "a number"))
}

fn missing(name: &str, expected: &str) -> Fault {
    Fault::new(name, expected, "no such field")
}

/// A list of a bounded length.
struct List<T>(Vec<T>);

const MAX_LIST: usize = 1 << 13;

impl<'de, T: Deserialize<'de>> Deserialize<'de> for List<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(ListVisitor(Vec::new()))
    }
}

struct ListVisitor<T>(Vec<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ListVisitor<T> {
    type Value = List<T>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "a list of at most {MAX_LIST}")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut elements: A) -> Result<List<T>, A::Error> {
        while let Some(element) = elements.next_element()? {
            if self.0.len() == MAX_LIST {
                return Err(A::Error::invalid_length(MAX_LIST + 1, &self));
            }
            self.0.push(element);
        }
        Ok(List(self.0))
    }
}
