//! Each model declares its weights by checkpoint name and records its forward pass once, in one screen.

mod blocks;
mod gemma;
mod keys;
mod llama;
mod rope;

use self::keys::{Keys, LIMIT};
pub use self::rope::RopeConfig;
use crate::error::{Error, Result};
use crate::kernel::Count;
use crate::kernels::{
    AttentionDims, AttentionInputs, Cover, CoverTensors, FarInputs, LOGPROBS_ROW, Norm, PENDING, Pairs, PenaltyTensors,
    Rope, Trials,
};
use crate::memory::{Capacity, Element, Memory, Tensor, Weight, WeightRows};
use crate::program::Recorder;
use crate::weights::Weights;

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
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Rotary embedding of Gemma's layers with a window.
    pub local_rope: RopeConfig,
    /// One layer of so many has no rotary embedding, the last; 0: all have it.
    pub nope_every: usize,
    /// Which dims of a head turn together.
    pub pairs: Pairs,
    /// Positions that layers with a sliding window see; 0: none has one.
    pub window: usize,
    /// One layer of so many has no window, the last; 0: all have it.
    pub global_every: usize,
    /// Soft-cap of attention's scores; 0: none.
    pub score_cap: f32,
    /// Soft-cap of the logits; 0: none.
    pub logit_cap: f32,
    /// Epsilon of the RMS norms.
    pub norm_eps: f32,
}

/// `general.architecture` of the models that run.
pub const ARCHITECTURES: &[&str] = &["gemma2", "gemma3", "llama", "phi3", "qwen2", "qwen3", "smollm3"];

/// Those whose sliding window is known to be in which layers.
const WINDOWED: &[&str] = &["gemma2", "gemma3", "llama", "phi3"];

impl Config {
    /// Reads the metadata of a supported architecture, under the names that llama.cpp gives its keys; the error of another
    /// lists those.
    pub fn read(weights: &Weights) -> Result<Self> {
        let architecture = weights.metadata().string("general.architecture")?.to_string();
        if !ARCHITECTURES.contains(&architecture.as_str()) {
            let expected = format!("one of {}", ARCHITECTURES.join(", "));
            return Err(Error::file(weights.path(), "general.architecture", expected, architecture));
        }
        let keys = Keys { weights, architecture: &architecture };
        let hidden = keys.size("embedding_length")?;
        let heads = keys.size("attention.head_count")?;
        let kv_heads = keys.size_or("attention.head_count_kv", heads)?;
        let whole = heads.is_multiple_of(kv_heads);
        keys.expect("attention.head_count_kv", whole, || format!("a divisor of {heads} heads"), kv_heads)?;
        let head_dim = keys.size_or("attention.key_length", hidden / heads)?;
        let whole = head_dim > 0 && head_dim.is_multiple_of(8);
        keys.expect("attention.key_length", whole, || "a multiple of 8".into(), head_dim)?;
        let value_dim = keys.size_or("attention.value_length", head_dim)?;
        let equal = value_dim == head_dim;
        keys.expect("attention.value_length", equal, || format!("the key length {head_dim}"), value_dim)?;
        let context = keys.size("context_length")?;
        let rope = read_rope(&keys, head_dim, context)?;
        let gemma2 = architecture == "gemma2";
        let window = keys.integer_or("attention.sliding_window", if gemma2 { 4096 } else { 0 })?;
        let known = window == 0 || WINDOWED.contains(&architecture.as_str());
        keys.expect("attention.sliding_window", known, || "none in this architecture".into(), window)?;
        let period = match architecture.as_str() {
            "gemma2" => 2,
            "gemma3" => 6,
            _ => 0,
        };
        let local = if architecture == "gemma3" { rope.unscaled(10000.0) } else { rope };
        // GGUF files have rows of q and k in an order of the architecture; other checkpoints say which.
        let pairs = match keys.string("rope.pairs")? {
            None if matches!(architecture.as_str(), "llama" | "smollm3") => Pairs::Neighbours,
            None | Some("halves") => Pairs::Halves,
            Some(pairs) => return Err(keys.error("rope.pairs", || "halves".into(), pairs)),
        };
        // The tokenizer's length may be padded; the embedding's rows are what logits exist for.
        let embed = weights.tensors().find(|t| t.name == "token_embd.weight");
        let vocab = embed.map_or(0, |t| t.dims[0] as usize);
        if vocab > LIMIT {
            return Err(Error::file(weights.path(), "rows of token_embd.weight", format!("at most {LIMIT}"), vocab));
        }
        Ok(Self {
            layers: keys.size("block_count")?,
            hidden,
            ffn: keys.size("feed_forward_length")?,
            vocab,
            attention: AttentionDims { heads, kv_heads, head_dim },
            context,
            rope,
            local_rope: RopeConfig { theta: keys.positive_or("rope.freq_base_swa", local.theta)?, ..local },
            nope_every: if architecture == "smollm3" { 4 } else { 0 },
            pairs,
            window,
            global_every: keys.integer_or("attention.sliding_window_pattern", period)?,
            score_cap: read_cap(&keys, "attn_logit_softcapping", if gemma2 { 50.0 } else { 0.0 })?,
            logit_cap: read_cap(&keys, "final_logit_softcapping", if gemma2 { 30.0 } else { 0.0 })?,
            norm_eps: keys.positive("attention.layer_norm_rms_epsilon")?,
            architecture,
        })
    }

    /// Layers whose queries see all of the past.
    pub fn global_layers(&self) -> usize {
        (0..self.layers).filter(|l| self.window_of(*l) == 0).count()
    }

    /// Positions that layer `l` sees, its own the last; 0: all before.
    fn window_of(&self, l: usize) -> usize {
        if is_last_of(self.global_every, l) { 0 } else { self.window }
    }

    /// Bytes of keys and values of one position, in all layers.
    pub fn kv_bytes(&self, kv: Element) -> usize {
        2 * self.layers * self.attention.kv_heads * kv.row_bytes(self.attention.head_dim)
    }
}

/// Inputs that the host writes before a step, and results that it reads after it.
#[derive(Clone, Copy, Debug)]
pub struct Io {
    /// Tokens and what they attend to.
    pub attention: AttentionInputs,
    /// `[R]`: tokens whose logits are wanted.
    pub outputs: Tensor,
    /// `[R, C]`: normalised hidden states, which logits are made of.
    pub last: Tensor,
    /// `[R, V]`, and behind those as many that penalize makes of some.
    pub logits: Tensor,
    /// Which those are.
    pub penalties: PenaltyTensors,
    /// `[R]` of [`Draw`](crate::sampler::Draw).
    pub sampling: Tensor,
    /// `[PENDING, R]`: ids that the last steps have drawn, each in its turn.
    pub ids: Tensor,
    /// `[R, LOGPROBS_ROW]`.
    pub logprobs: Tensor,
    /// Where trees of anchors are built and widths are tried, when sessions may have them.
    pub trees: Option<(CoverTensors, Trials)>,
}

impl Io {
    /// Declares them for a model of these shapes, with `cover` where sessions may have trees of anchors.
    pub fn declare(config: &Config, cover: Option<Cover>, m: &mut Memory) -> Self {
        let c = m.capacity;
        let entries = c.sequences * c.of(Count::Pages);
        let runs = c.sequences * AttentionDims::parts(c.of(Count::Pages));
        let parts = runs * config.attention.heads;
        Self {
            attention: AttentionInputs {
                tokens: m.input("tokens", Count::Tokens, 4),
                sequences: m.input("sequences", Count::Sequences, 4),
                tiles: m.input("tiles", Count::Tiles, 4),
                pages: m.tensor("pages", Element::U32, entries, 2),
                parts: m.tensor("parts", Element::F32, parts, config.attention.head_dim + 4),
                near: m.tensor("near", Element::F32, c.tokens * config.attention.heads, 4),
                far: cover.map(|cover| (cover, FarInputs::declare(cover, m))),
            },
            outputs: m.input("outputs", Count::Outputs, 1),
            last: m.activation("last", Count::Outputs, config.hidden),
            logits: m.activation_and("logits", Count::Outputs, c.of(Count::Penalized), config.vocab),
            penalties: PenaltyTensors::declare(config.vocab, m),
            sampling: m.input("sampling", Count::Outputs, 8),
            ids: m.tensor("ids", Element::U32, PENDING * c.outputs, 1),
            logprobs: m.activation("logprobs", Count::Logprobs, LOGPROBS_ROW),
            trees: cover.map(|cover| {
                let tensors = CoverTensors::declare(config.attention.kv_heads, cover, m);
                (tensors, Trials::declare(config.attention, cover, m))
            }),
        }
    }

    /// Records how tokens are drawn from the logits.
    pub fn record_draw(&self, r: &mut Recorder) {
        r.penalize(self.logits, self.penalties, self.ids);
        r.sample(self.logits, self.sampling, self.ids);
        r.logprobs(self.logits, self.sampling, self.ids, self.logprobs);
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
        "gemma2" | "gemma3" => Box::new(gemma::Gemma::declare(config, &mut declare)?),
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
        let view = self.rows(name, rows, cols)?;
        Ok(self.memory.weight(name, view))
    }

    /// The rows of the matrix `name` of `rows × cols`.
    fn rows(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightRows> {
        self.used.push(name.into());
        self.weights.tensor(name, rows, cols)
    }

    /// The rows of several matrices, given as name and number of rows.
    fn all<const N: usize>(&mut self, names: [(String, usize); N], cols: usize) -> Result<Vec<WeightRows>> {
        names.iter().map(|(name, rows)| self.rows(name, *rows, cols)).collect()
    }

    /// Weights of pairs of rows, counted through all `tensors`: one for each run of tensors of one format. No pair is of two
    /// tensors.
    fn pairs(&mut self, name: &str, tensors: Vec<WeightRows>, pairs: &[[usize; 2]]) -> Vec<Weight> {
        let (mut weights, mut first) = (Vec::new(), 0);
        for run in tensors.chunk_by(|a, b| a.format == b.format) {
            let rows = first..first + run.iter().map(|t| t.rows).sum::<usize>();
            let own = pairs.iter().filter(|pair| rows.contains(&pair[0])).map(|pair| pair.map(|row| row - first));
            weights.push(self.memory.pairs(name, run.to_vec(), &own.collect::<Vec<_>>()));
            first = rows.end;
        }
        weights
    }

    /// Weights of all rows of `tensors`, one for each run of tensors of one format.
    fn stacks(&mut self, name: &str, tensors: Vec<WeightRows>) -> Vec<Weight> {
        let runs = tensors.chunk_by(|a, b| a.format == b.format);
        runs.map(|run| self.memory.stack(name, run.to_vec())).collect()
    }

    /// The RMS norm `name` of the residual stream.
    fn norm(&mut self, name: &str, config: &Config) -> Result<Norm> {
        Ok(Norm { gain: self.vector(name, config.hidden)?, eps: config.norm_eps, h: self.token("h", config.hidden) })
    }

    /// The activation `name` of a token, which all layers share.
    fn token(&mut self, name: &str, cols: usize) -> Tensor {
        let shared = self.memory.handles().find(|t| {
            let desc = self.memory.desc(*t);
            desc.name == name && desc.bound == Some(Count::Tokens) && desc.cols == cols
        });
        shared.unwrap_or_else(|| self.memory.activation(name, Count::Tokens, cols))
    }

    /// The vector `name` of `len` elements, decoded to f32.
    fn vector(&mut self, name: &str, len: usize) -> Result<Tensor> {
        let values = self.values(name, len)?;
        Ok(self.memory.table(name, len, &values))
    }

    fn values(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let mut values = vec![0.0; len];
        self.rows(name, 1, len)?.decode_row(0, &mut values);
        Ok(values)
    }

    /// Rotary embedding with the checkpoint's factors: `rope_freqs.weight`, or the long or short ones, as the context in use
    /// goes beyond the original one or not.
    fn rope(&mut self, config: RopeConfig, pairs: Pairs) -> Result<Rope> {
        const FREQS: &str = "rope_freqs.weight";
        const LONG: &str = "rope_factors_long.weight";
        const SHORT: &str = "rope_factors_short.weight";
        let factors = if self.contains(FREQS) {
            Some(self.factors(FREQS, config.dims / 2)?)
        } else if self.contains(LONG) || self.contains(SHORT) {
            let (long, short) = (self.factors(LONG, config.dims / 2)?, self.factors(SHORT, config.dims / 2)?);
            Some(if self.memory.capacity.context > config.original_context { long } else { short })
        } else {
            None
        };
        Ok(self.rope_table("rope", config, factors.as_deref(), pairs))
    }

    fn rope_table(&mut self, name: &str, config: RopeConfig, factors: Option<&[f32]>, pairs: Pairs) -> Rope {
        let table = config.table(self.memory.capacity.context, factors);
        Rope { table: self.memory.table(name, config.dims, &table), dims: config.dims, pairs }
    }

    /// Divisors of rotary frequencies.
    fn factors(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let factors = self.values(name, len)?;
        match factors.iter().find(|f| !(f.is_finite() && **f > 0.0)) {
            None => Ok(factors),
            Some(found) => Err(Error::Tensor {
                path: self.weights.path().into(),
                name: name.into(),
                expected: "finite numbers above 0".into(),
                found: found.to_string(),
            }),
        }
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

fn read_rope(keys: &Keys, head_dim: usize, context: usize) -> Result<RopeConfig> {
    let dims = keys.size_or("rope.dimension_count", head_dim)?;
    let whole = dims <= head_dim && dims.is_multiple_of(8);
    keys.expect("rope.dimension_count", whole, || format!("a multiple of 8, at most the key length {head_dim}"), dims)?;
    let kind = keys.string("rope.scaling.type")?.unwrap_or("linear");
    let factor = match kind {
        // What longrope scales by is in tensors.
        "none" | "longrope" => 1.0,
        "linear" => keys.positive_or("rope.scaling.factor", 1.0)?,
        "yarn" => keys.positive("rope.scaling.factor")?,
        _ => {
            let expected = || "none, linear, yarn or longrope".into();
            return Err(keys.error("rope.scaling.type", expected, kind));
        }
    };
    let extrapolates = if kind == "yarn" { 1.0 } else { 0.0 };
    let beta_fast = keys.positive_or("rope.scaling.yarn_beta_fast", 32.0)?;
    Ok(RopeConfig {
        dims,
        theta: keys.positive_or("rope.freq_base", 10000.0)?,
        factor,
        ext_factor: keys.within_or("rope.scaling.yarn_ext_factor", 0.0..=1.0, extrapolates)?,
        beta_fast,
        beta_slow: keys.within_or("rope.scaling.yarn_beta_slow", 1e-3..=beta_fast, 1.0)?,
        attn_factor: keys.within_or("rope.scaling.attn_factor", 1e-3..=1e3, 1.0)?,
        original_context: keys.size_or("rope.scaling.original_context_length", context)?,
    })
}

/// A soft-cap, not so small that dividing by it would be dividing by 0.
fn read_cap(keys: &Keys, name: &str, default: f32) -> Result<f32> {
    let found = keys.number_or(name, default)?;
    keys.expect(
        name,
        found == 0.0 || (1e-3..=1e6).contains(&found),
        || "0 or a number from 0.001 to 1000000".into(),
        found,
    )?;
    Ok(found)
}

/// Whether layer `l` is the last of a group of `every`; never where that is 0.
fn is_last_of(every: usize, l: usize) -> bool {
    every > 0 && (l + 1).is_multiple_of(every)
}
