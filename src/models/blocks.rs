//! What the layers of most models begin their halves with: x → q, k, v and x → gated units. Each declares its weights by their
//! names in GGUF files, and takes as few dispatches as the formats of its weights allow.

use super::{Config, Declare};
use crate::error::Result;
use crate::kernels::{AttentionInputs, Gate, Norm, Pairs, Rope};
use crate::memory::{Tensor, Weight, WeightRows, stride};
use crate::program::Recorder;

/// Norm, projections, biases and rotary embedding: `q` is left for attention, k and v in their pages.
pub(super) struct Qkv {
    norm: Norm,
    rope: Rope,
    projections: Projections,
    q: Tensor,
    /// k and v.
    pub pages: [Tensor; 2],
    /// Where k and v of a step's tokens wait to be rounded to blocks, if pages are of such.
    rows: Option<[Tensor; 2]>,
}

enum Projections {
    /// Pairs of dims; `vectors` are the norm's gains and the biases.
    Pairs { weights: Vec<Weight>, vectors: Tensor },
    /// The heads of q and k have norms, of `gains`, which come before the rotation. `products` are q, k and v without either.
    Heads { weights: Vec<Weight>, gains: Tensor, products: Tensor },
}

impl Qkv {
    /// Of layer `l`: attn_norm, attn_q, attn_k and attn_v or attn_qkv, with the architecture's head norms, or with the checkpoint's biases.
    pub fn declare(config: &Config, l: usize, rope: Rope, d: &mut Declare) -> Result<Self> {
        let (c, a) = (config.hidden, config.attention);
        let (q_dim, kv_dim) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let name = |part: &str| format!("blk.{l}.{part}");
        let norm = d.norm(&name("attn_norm.weight"), config)?;
        let q = d.token("q", q_dim);
        let parts = [("attn_q", q_dim), ("attn_k", kv_dim), ("attn_v", kv_dim)];
        let projections = match matches!(config.architecture.as_str(), "gemma3" | "qwen3") {
            true => {
                let tensors = d.all(parts.map(|(part, rows)| (name(&format!("{part}.weight")), rows)), c)?;
                let mut gains = d.values(&name("attn_q_norm.weight"), a.head_dim)?;
                gains.extend(d.values(&name("attn_k_norm.weight"), a.head_dim)?);
                Projections::Heads {
                    weights: d.stacks(&name("attn_qkv"), tensors),
                    gains: d.memory.table(name("attn_q_norm and attn_k_norm"), 2 * a.head_dim, &gains),
                    products: d.token("qkv", q_dim + 2 * kv_dim),
                }
            }
            false => {
                let qkv = name("attn_qkv.weight");
                let tensors = match d.contains(&qkv) {
                    true => vec![d.rows(&qkv, q_dim + 2 * kv_dim, c)?],
                    false => d.all(parts.map(|(part, rows)| (name(&format!("{part}.weight")), rows)), c)?,
                };
                let pairs = pairs(config, rope);
                let weights = d.pairs(&name("attn_qkv"), tensors, &pairs);
                let mut vectors = d.values(&name("attn_norm.weight"), c)?;
                if d.contains(&name("attn_q.bias")) {
                    let mut biases = Vec::new();
                    for (part, rows) in parts {
                        biases.extend(d.values(&name(&format!("{part}.bias")), rows)?);
                    }
                    vectors.resize(stride(c), 0.0);
                    vectors.extend(pairs.iter().flatten().map(|dim| biases[*dim]));
                }
                let vectors = d.memory.table(name("attn_norm and biases"), vectors.len(), &vectors);
                Projections::Pairs { weights, vectors }
            }
        };
        let rows = d.memory.capacity.kv.is_blocks().then(|| ["k", "v"].map(|name| d.token(name, kv_dim)));
        Ok(Self { norm, rope, projections, q, pages: d.kv_pages(l, a), rows })
    }

    /// Returns q.
    pub fn record(&self, config: &Config, inputs: AttentionInputs, x: Tensor, r: &mut Recorder) -> Tensor {
        let Self { norm, rope, q, pages, rows, .. } = *self;
        let (a, kv) = (config.attention, rows.unwrap_or(pages));
        match &self.projections {
            Projections::Pairs { weights, vectors } => {
                r.linear_rope(a, inputs, x, norm, weights, *vectors, rope, q, kv);
            }
            Projections::Heads { weights, gains, products } => {
                r.linear_norm(x, norm, &[(weights, *products)]);
                r.norm_rope_store(a, inputs, rope, *products, *gains, norm.eps, q, kv);
            }
        }
        if let Some(rows) = rows {
            r.kv_store(a, inputs, rows, q, pages);
        }
        q
    }
}

/// The pairs of dims of all heads of q, of k and of v, counted through: those that turn together first, the rest as they stand.
fn pairs(config: &Config, rope: Rope) -> Vec<[usize; 2]> {
    let a = config.attention;
    let of_head = |head: usize| {
        (0..a.head_dim / 2).map(move |p| {
            let turns = head < a.heads + a.kv_heads && p < rope.dims / 2;
            let dims = if turns { rope.pairs.dims(p, rope.dims) } else { Pairs::Neighbours.dims(p, rope.dims) };
            dims.map(|dim| head * a.head_dim + dim)
        })
    };
    (0..a.heads + 2 * a.kv_heads).flat_map(of_head).collect()
}

/// Norm and gated linear unit.
pub(super) struct Gated {
    norm: Norm,
    weights: Units,
    gate: Gate,
    y: Tensor,
}

enum Units {
    /// Rows of gate and up in pairs.
    Pairs(Weight),
    /// Of different formats.
    Apart { weights: [Weight; 2], products: [Tensor; 2] },
}

impl Gated {
    /// Of layer `l`: ffn_norm, and ffn_gate and ffn_up, or both stacked in ffn_up.
    pub fn declare(config: &Config, l: usize, gate: Gate, d: &mut Declare) -> Result<Self> {
        let (c, f) = (config.hidden, config.ffn);
        let name = |part: &str| format!("blk.{l}.{part}");
        let tensors = match d.contains(&name("ffn_gate.weight")) {
            true => d.all(["ffn_gate.weight", "ffn_up.weight"].map(|part| (name(part), f)), c)?,
            false => vec![d.rows(&name("ffn_up.weight"), 2 * f, c)?],
        };
        let weights = match <[WeightRows; 2]>::try_from(tensors) {
            Ok([gate, up]) if gate.format != up.format => Units::Apart {
                weights: [("ffn_gate", gate), ("ffn_up", up)].map(|(part, rows)| d.memory.weight(&name(part), rows)),
                products: [d.token("gate", f), d.token("up", f)],
            },
            tensors => {
                let pairs: Vec<_> = (0..f).map(|i| [i, f + i]).collect();
                let tensors = tensors.map_or_else(|one| one, Vec::from);
                Units::Pairs(d.memory.pairs(&name("ffn_gate and ffn_up"), tensors, &pairs))
            }
        };
        Ok(Self { norm: d.norm(&name("ffn_norm.weight"), config)?, weights, gate, y: d.token("act", f) })
    }

    /// Returns the units, `[T, F]`.
    pub fn record(&self, x: Tensor, r: &mut Recorder) -> Tensor {
        let Self { norm, y, .. } = *self;
        match &self.weights {
            Units::Pairs(w) => r.linear_glu(x, norm, w, self.gate, y),
            Units::Apart { weights, products: [gate, up] } => {
                r.linear_norm(x, norm, &[(&weights[..1], *gate), (&weights[1..], *up)]);
                match self.gate {
                    Gate::Silu => r.swiglu(*gate, *up, y),
                    Gate::Gelu => r.geglu(*gate, *up, y),
                }
            }
        }
        y
    }
}
