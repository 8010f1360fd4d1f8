//! Llama (arXiv:2302.13971) and models of its shape: Mistral, SmolLM2; Qwen2 (arXiv:2407.10671), whose q, k and v have
//! biases; Qwen3 (arXiv:2505.09388), which normalises the heads of q and k. Names of weights are those of GGUF files.

use super::{Config, Declare, Io, Model, rope_table};
use crate::error::Result;
use crate::kernel::Count;
use crate::kernels::{Rope, Scores};
use crate::memory::{Tensor, Weight};
use crate::program::Recorder;

struct Layer {
    attn_norm: Tensor,
    q: Weight,
    k: Weight,
    v: Weight,
    /// Of q, k and v.
    biases: Option<[Tensor; 3]>,
    /// Of the heads of q and k.
    norms: Option<[Tensor; 2]>,
    o: Weight,
    ffn_norm: Tensor,
    gate: Weight,
    up: Weight,
    down: Weight,
    kv: [Tensor; 2],
}

pub(super) struct Llama {
    config: Config,
    embed: Weight,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Weight,
    rope: Rope,
    activations: Activations,
}

/// Shared by all layers; `x` is the residual stream.
struct Activations {
    x: Tensor,
    h: Tensor,
    qkv: [Tensor; 3],
    /// q and k before their heads are normalised.
    raw: [Tensor; 2],
    o: Tensor,
    gate: Tensor,
    up: Tensor,
    act: Tensor,
    last: Tensor,
    last_h: Tensor,
}

impl Llama {
    pub fn declare(config: &Config, d: &mut Declare) -> Result<Self> {
        let (c, f, a, capacity) = (config.hidden, config.ffn, config.attention, d.memory.capacity);
        let (q_dim, kv_dim) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let embed = d.matrix("token_embd.weight", config.vocab, c)?;
        let mut layers = Vec::new();
        for l in 0..config.layers {
            let name = |part: &str| format!("blk.{l}.{part}");
            layers.push(Layer {
                attn_norm: d.vector(&name("attn_norm.weight"), c)?,
                q: d.matrix(&name("attn_q.weight"), q_dim, c)?,
                k: d.matrix(&name("attn_k.weight"), kv_dim, c)?,
                v: d.matrix(&name("attn_v.weight"), kv_dim, c)?,
                biases: match d.optional(&name("attn_q.bias"), q_dim)? {
                    Some(q) => {
                        Some([q, d.vector(&name("attn_k.bias"), kv_dim)?, d.vector(&name("attn_v.bias"), kv_dim)?])
                    }
                    None => None,
                },
                norms: match d.optional(&name("attn_q_norm.weight"), a.head_dim)? {
                    Some(q) => Some([q, d.vector(&name("attn_k_norm.weight"), a.head_dim)?]),
                    None => None,
                },
                o: d.matrix(&name("attn_output.weight"), c, q_dim)?,
                ffn_norm: d.vector(&name("ffn_norm.weight"), c)?,
                gate: d.matrix(&name("ffn_gate.weight"), f, c)?,
                up: d.matrix(&name("ffn_up.weight"), f, c)?,
                down: d.matrix(&name("ffn_down.weight"), c, f)?,
                kv: d.kv_pages(l, a),
            });
        }
        let norm = d.vector("output_norm.weight", c)?;
        let head = d.head(config, &embed)?;
        let factors = match d.contains("rope_freqs.weight") {
            true => Some(d.values("rope_freqs.weight", a.head_dim / 2)?),
            false => None,
        };
        let table = rope_table(capacity.context, a.head_dim, config.rope_theta, config.rope_factor, factors.as_deref());
        let m = &mut *d.memory;
        let rope = Rope { table: m.table("rope", a.head_dim, &table), pairs: config.pairs };
        let mut token = |name, cols| m.activation(name, Count::Tokens, cols);
        let (x, h, o) = (token("x", c), token("h", c), token("o", q_dim));
        let qkv = [token("q", q_dim), token("k", kv_dim), token("v", kv_dim)];
        let raw = [token("raw_q", q_dim), token("raw_k", kv_dim)];
        let (gate, up, act) = (token("gate", f), token("up", f), token("act", f));
        let [last, last_h] = ["last", "last_h"].map(|name| m.activation(name, Count::Outputs, c));
        let activations = Activations { x, h, qkv, raw, o, gate, up, act, last, last_h };
        Ok(Self { config: config.clone(), embed, layers, norm, head, rope, activations })
    }
}

impl Model for Llama {
    fn record(&self, io: &Io, r: &mut Recorder) {
        let Config { attention: dims, norm_eps: eps, .. } = self.config;
        let Activations { x, h, qkv, raw, o, gate, up, act, last, last_h } = self.activations;
        let scores = Scores { scale: 1.0 / (dims.head_dim as f32).sqrt(), window: 0 };

        r.embed(io.attention.tokens, &self.embed, x);
        for layer in &self.layers {
            r.rmsnorm(x, layer.attn_norm, eps, h);
            let [q, k] = if layer.norms.is_some() { raw } else { [qkv[0], qkv[1]] };
            for (w, y) in [(&layer.q, q), (&layer.k, k), (&layer.v, qkv[2])] {
                r.linear(h, w, y);
            }
            for (b, y) in layer.biases.into_iter().flatten().zip([q, k, qkv[2]]) {
                r.bias(b, y);
            }
            for (i, w) in layer.norms.into_iter().flatten().enumerate() {
                r.rmsnorm(raw[i], w, eps, qkv[i]);
            }
            r.rope_store(dims, io.attention, self.rope, qkv, layer.kv);
            r.attention(dims, io.attention, scores, qkv[0], layer.kv, o);
            r.linear_add(o, &layer.o, x);

            r.rmsnorm(x, layer.ffn_norm, eps, h);
            r.linear(h, &layer.gate, gate);
            r.linear(h, &layer.up, up);
            r.swiglu(gate, up, act);
            r.linear_add(act, &layer.down, x);
        }
        r.last_tokens(io.outputs, x, last);
        r.rmsnorm(last, self.norm, eps, last_h);
        r.linear(last_h, &self.head, io.logits);
    }
}
