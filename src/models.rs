//! Each model declares its weights by checkpoint name and records its forward pass once, in one screen.

mod gemma3;
mod llama;

use crate::error::{Error, Result};
use crate::kernel::Count;
use crate::kernels::{AttentionDims, AttentionInputs, Pairs};
use crate::memory::{Capacity, Element, Memory, Tensor, Weight};
use crate::program::Recorder;
use crate::weights::{Metadata, Weights};

/// The shapes of a model, from the checkpoint's metadata.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `general.architecture`.
    pub architecture: String,
    /// Number of layers.
    pub layers: usize,
    /// C: elements of the residual stream.
    pub hidden: usize,
    /// F: elements between gate/up and down.
    pub ffn: usize,
    /// V: number of tokens.
    pub vocab: usize,
    /// Heads.
    pub attention: AttentionDims,
    /// Positions the model was trained for.
    pub context: usize,
    /// Which dims of a head turn together.
    pub pairs: Pairs,
    /// Base of the rotary frequencies.
    pub rope_theta: f32,
    /// Rotary frequencies are divided by this.
    pub rope_factor: f32,
    /// Positions that layers with a sliding window see; 0: none has one.
    pub window: usize,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
}

/// `general.architecture` of the models that run.
pub const ARCHITECTURES: &[&str] = &["gemma3", "llama", "qwen2", "qwen3"];

const EPSILON: &str = "attention.layer_norm_rms_epsilon";

/// Largest values accepted from a file: far beyond any model, small enough that products of two never overflow.
const LIMIT: usize = 1 << 24;

impl Config {
    /// Reads the metadata of a supported architecture; the error of another lists those.
    pub fn read(weights: &Weights) -> Result<Self> {
        let m = weights.metadata();
        let architecture = m.string("general.architecture")?.to_string();
        if !ARCHITECTURES.contains(&architecture.as_str()) {
            let expected = format!("one of {}", ARCHITECTURES.join(", "));
            return Err(Error::file(weights.path(), "general.architecture", expected, architecture));
        }
        let key = |name: &str| format!("{architecture}.{name}");
        let size = |name: &str, found: Result<u32>| {
            let found = found? as usize;
            let bad = || Error::file(weights.path(), key(name), format!("1 to {LIMIT}"), found);
            (1..=LIMIT).contains(&found).then_some(found).ok_or_else(bad)
        };
        let required = |name: &str| size(name, m.u32(&key(name)));
        let hidden = required("embedding_length")?;
        let heads = required("attention.head_count")?;
        let kv_heads = match m.optional(&key("attention.head_count_kv"), Metadata::u32)? {
            Some(n) => size("attention.head_count_kv", Ok(n))?,
            None => heads,
        };
        let head_dim = match m.optional(&key("attention.key_length"), Metadata::u32)? {
            Some(n) => size("attention.key_length", Ok(n))?,
            None => hidden / heads,
        };
        let expect = |name: &str, ok: bool, expected: String, found: usize| {
            if ok { Ok(()) } else { Err(Error::file(weights.path(), key(name), expected, found)) }
        };
        expect(
            "attention.head_count_kv",
            heads.is_multiple_of(kv_heads),
            format!("a divisor of {heads} heads"),
            kv_heads,
        )?;
        let whole = head_dim > 0 && head_dim.is_multiple_of(8);
        expect("attention.key_length", whole, "a multiple of 8".into(), head_dim)?;
        if let Some(n) = m.optional(&key("attention.value_length"), Metadata::u32)? {
            expect("attention.value_length", n as usize == head_dim, format!("the key length {head_dim}"), n as usize)?;
        }
        if let Some(n) = m.optional(&key("rope.dimension_count"), Metadata::u32)? {
            expect("rope.dimension_count", n as usize == head_dim, format!("the key length {head_dim}"), n as usize)?;
        }
        let positive = |name: &str, found: f32| {
            let bad = || Error::file(weights.path(), key(name), "a finite number above 0", found);
            (found.is_finite() && found > 0.0).then_some(found).ok_or_else(bad)
        };
        let rope_factor = match m.optional(&key("rope.scaling.type"), Metadata::string)? {
            None | Some("none") => 1.0,
            Some("linear") => positive("rope.scaling.factor", m.f32(&key("rope.scaling.factor"))?)?,
            Some(kind) => return Err(Error::file(weights.path(), key("rope.scaling.type"), "none or linear", kind)),
        };
        // GGUF files have rows of q and k in an order of the architecture; other checkpoints say which.
        let pairs = match m.optional(&key("rope.pairs"), Metadata::string)? {
            None if architecture == "llama" => Pairs::Neighbours,
            None | Some("halves") => Pairs::Halves,
            Some(pairs) => return Err(Error::file(weights.path(), key("rope.pairs"), "halves", pairs)),
        };
        let window = m.optional(&key("attention.sliding_window"), Metadata::u32)?.unwrap_or(0) as usize;
        if window > 0 && architecture != "gemma3" {
            return Err(Error::file(weights.path(), key("attention.sliding_window"), "none", window));
        }
        // The tokenizer's length may be padded; the embedding's rows are what logits exist for.
        let embed = weights.tensors().find(|t| t.name == "token_embd.weight");
        let vocab = embed.map_or(0, |t| t.dims[0] as usize);
        if vocab > LIMIT {
            return Err(Error::file(weights.path(), "rows of token_embd.weight", format!("at most {LIMIT}"), vocab));
        }
        Ok(Self {
            layers: required("block_count")?,
            hidden,
            ffn: required("feed_forward_length")?,
            vocab,
            attention: AttentionDims { heads, kv_heads, head_dim },
            context: required("context_length")?,
            pairs,
            rope_theta: positive(
                "rope.freq_base",
                m.optional(&key("rope.freq_base"), Metadata::f32)?.unwrap_or(10000.0),
            )?,
            rope_factor,
            window,
            norm_eps: positive(EPSILON, m.f32(&key(EPSILON))?)?,
            architecture,
        })
    }

    /// Bytes of keys and values of one position, in all layers.
    pub fn kv_bytes(&self, kv: Element) -> usize {
        let element = if kv == Element::F16 { 2 } else { 4 };
        2 * self.layers * self.attention.kv_heads * self.attention.head_dim * element
    }
}

/// Inputs that the host writes before a step, and results that it reads after it.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// Tokens and what they attend to.
    pub attention: AttentionInputs,
    /// `[R]`: tokens whose logits are wanted.
    pub outputs: Tensor,
    /// `[R, V]`.
    pub logits: Tensor,
    /// `[R]` of [`Draw`](crate::sampler::Draw).
    pub sampling: Tensor,
    /// `[R]`: sampled ids.
    pub ids: Tensor,
}

impl Io {
    /// Declares them for a model of these shapes.
    pub fn declare(config: &Config, m: &mut Memory) -> Self {
        let c = m.capacity;
        let entries = c.sequences * c.of(Count::Pages);
        let parts = entries * config.attention.heads;
        Self {
            attention: AttentionInputs {
                tokens: m.input("tokens", Count::Tokens, 4),
                sequences: m.input("sequences", Count::Sequences, 4),
                tiles: m.input("tiles", Count::Tiles, 4),
                pages: m.tensor("pages", Element::U32, entries, 2),
                parts: m.tensor("parts", Element::F32, parts, config.attention.head_dim + 4),
            },
            outputs: m.input("outputs", Count::Outputs, 1),
            logits: m.activation("logits", Count::Outputs, config.vocab),
            sampling: m.input("sampling", Count::Outputs, 4),
            ids: m.input("ids", Count::Outputs, 1),
        }
    }
}

/// A model whose weights are declared.
pub trait Model: Send {
    /// Records the forward pass: from `io.attention.tokens` to `io.logits`.
    fn record(&self, io: &Io, r: &mut Recorder);
}

/// Declares the weights, KV pages and activations of the checkpoint's model.
pub fn declare(config: &Config, weights: &Weights, m: &mut Memory) -> Result<Box<dyn Model>> {
    let mut declare = Declare { weights, memory: m, used: Vec::new() };
    let model: Box<dyn Model> = match config.architecture.as_str() {
        "gemma3" => Box::new(gemma3::Gemma3::declare(config, &mut declare)?),
        _ => Box::new(llama::Llama::declare(config, &mut declare)?),
    };
    declare.expect_all_used()?;
    Ok(model)
}

/// Takes weights from a checkpoint into a [`Memory`] by name, and knows which were taken.
struct Declare<'a> {
    weights: &'a Weights,
    memory: &'a mut Memory,
    used: Vec<String>,
}

impl Declare<'_> {
    /// The matrix `name` of `rows × cols`.
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<Weight> {
        self.used.push(name.into());
        let view = self.weights.tensor(name, rows, cols)?;
        Ok(self.memory.weight(name, &view))
    }

    /// The vector `name` of `len` elements, decoded to f32.
    fn vector(&mut self, name: &str, len: usize) -> Result<Tensor> {
        let values = self.values(name, len)?;
        Ok(self.memory.table(name, len, &values))
    }

    /// The vector `name`, if the checkpoint has it.
    fn optional(&mut self, name: &str, len: usize) -> Result<Option<Tensor>> {
        if self.contains(name) { self.vector(name, len).map(Some) } else { Ok(None) }
    }

    fn values(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        self.used.push(name.into());
        let mut values = vec![0.0; len];
        self.weights.tensor(name, 1, len)?.decode_row(0, &mut values);
        Ok(values)
    }

    /// k and v pages of layer `l`.
    fn kv_pages(&mut self, l: usize, a: AttentionDims) -> [Tensor; 2] {
        let Capacity { pages, kv, .. } = self.memory.capacity;
        let rows = pages * a.kv_heads * Capacity::PAGE;
        ["k_pages", "v_pages"].map(|part| self.memory.tensor(format!("blk.{l}.{part}"), kv, rows, a.head_dim))
    }

    /// The output head: a weight of its own, or the embedding.
    fn head(&mut self, config: &Config, embed: &Weight) -> Result<Weight> {
        match self.contains("output.weight") {
            true => self.matrix("output.weight", config.vocab, config.hidden),
            false => Ok(embed.clone()),
        }
    }

    fn contains(&self, name: &str) -> bool {
        self.weights.contains(name)
    }

    /// A tensor that the model does not use would be silently wrong: a bias, say.
    fn expect_all_used(&self) -> Result<()> {
        match self.weights.tensors().map(|t| t.name).find(|name| !self.used.iter().any(|used| used == name)) {
            None => Ok(()),
            Some(name) => Err(Error::Tensor {
                path: self.weights.path().into(),
                name: name.into(),
                expected: "no tensor that the architecture does not use".into(),
                found: "one".into(),
            }),
        }
    }
}

/// cos and sin of each (position, pair) of a head: `[context, D]`. Frequencies are divided by `factor`, and by one of `factors`
/// for each pair.
fn rope_table(context: usize, head_dim: usize, theta: f32, factor: f32, factors: Option<&[f32]>) -> Vec<f32> {
    let frequency = |i: usize| {
        let of_pair = factors.map_or(1.0, |f| f[i] as f64);
        (theta as f64).powf(-2.0 * i as f64 / head_dim as f64) / (factor as f64 * of_pair)
    };
    let frequencies: Vec<f64> = (0..head_dim / 2).map(frequency).collect();
    let turn = |position: usize, f: f64| {
        let (sin, cos) = (position as f64 * f).sin_cos();
        [cos as f32, sin as f32]
    };
    (0..context).flat_map(|p| frequencies.iter().flat_map(move |f| turn(p, *f))).collect()
}
