//! Gemma 3 (arXiv:2503.19786): norms before and after each block, heads of q and k normalised, GeGLU, scaled embeddings; of
//! every six layers five see a sliding window, with rotary frequencies of their own. Names of weights are those of GGUF
//! files, whose norms already hold 1 + w.

use super::{Config, Declare, Io, Model, rope_table};
use crate::error::Result;
use crate::kernel::Count;
use crate::kernels::{Pairs, Rope, Scores};
use crate::memory::{Tensor, Weight};
use crate::program::Recorder;

struct Layer {
    attn_norm: Tensor,
    q: Weight,
    k: Weight,
    v: Weight,
    /// Of the heads of q and k.
    norms: [Tensor; 2],
    o: Weight,
    post_attn_norm: Tensor,
    ffn_norm: Tensor,
    gate: Weight,
    up: Weight,
    down: Weight,
    post_ffn_norm: Tensor,
    rope: Rope,
    window: usize,
    kv: [Tensor; 2],
}

pub(super) struct Gemma3 {
    config: Config,
    embed: Weight,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Weight,
    activations: Activations,
}

/// Shared by all layers; `x` is the residual stream.
struct Activations {
    x: Tensor,
    h: Tensor,
    /// q and k before their heads are normalised.
    raw: [Tensor; 2],
    qkv: [Tensor; 3],
    o: Tensor,
    /// What a block adds to the stream, before its norm.
    delta: Tensor,
    gate: Tensor,
    up: Tensor,
    act: Tensor,
    last: Tensor,
    last_h: Tensor,
}

/// One layer of so many sees everything, the others a window.
const GLOBAL_EVERY: usize = 6;
/// Base of the rotary frequencies of layers with a window.
const LOCAL_THETA: f32 = 10000.0;

impl Gemma3 {
    pub fn declare(config: &Config, d: &mut Declare) -> Result<Self> {
        let (c, f, a, capacity) = (config.hidden, config.ffn, config.attention, d.memory.capacity);
        let (q_dim, kv_dim) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let mut table = |name: &str, theta, factor| {
            let table = rope_table(capacity.context, a.head_dim, theta, factor, None);
            Rope { table: d.memory.table(name, a.head_dim, &table), pairs: Pairs::Halves }
        };
        let global = table("rope", config.rope_theta, config.rope_factor);
        let local = table("rope_local", LOCAL_THETA, 1.0);
        let embed = d.matrix("token_embd.weight", config.vocab, c)?;
        let mut layers = Vec::new();
        for l in 0..config.layers {
            let name = |part: &str| format!("blk.{l}.{part}");
            let is_global = (l + 1).is_multiple_of(GLOBAL_EVERY) || config.window == 0;
            layers.push(Layer {
                attn_norm: d.vector(&name("attn_norm.weight"), c)?,
                q: d.matrix(&name("attn_q.weight"), q_dim, c)?,
                k: d.matrix(&name("attn_k.weight"), kv_dim, c)?,
                v: d.matrix(&name("attn_v.weight"), kv_dim, c)?,
                norms: [
                    d.vector(&name("attn_q_norm.weight"), a.head_dim)?,
                    d.vector(&name("attn_k_norm.weight"), a.head_dim)?,
                ],
                o: d.matrix(&name("attn_output.weight"), c, q_dim)?,
                post_attn_norm: d.vector(&name("post_attention_norm.weight"), c)?,
                ffn_norm: d.vector(&name("ffn_norm.weight"), c)?,
                gate: d.matrix(&name("ffn_gate.weight"), f, c)?,
                up: d.matrix(&name("ffn_up.weight"), f, c)?,
                down: d.matrix(&name("ffn_down.weight"), c, f)?,
                post_ffn_norm: d.vector(&name("post_ffw_norm.weight"), c)?,
                rope: if is_global { global } else { local },
                window: if is_global { 0 } else { config.window },
                kv: d.kv_pages(l, a),
            });
        }
        let norm = d.vector("output_norm.weight", c)?;
        let head = d.head(config, &embed)?;
        let m = &mut *d.memory;
        let mut token = |name, cols| m.activation(name, Count::Tokens, cols);
        let (x, h, o, delta) = (token("x", c), token("h", c), token("o", q_dim), token("delta", c));
        let raw = [token("raw_q", q_dim), token("raw_k", kv_dim)];
        let qkv = [token("q", q_dim), token("k", kv_dim), token("v", kv_dim)];
        let (gate, up, act) = (token("gate", f), token("up", f), token("act", f));
        let [last, last_h] = ["last", "last_h"].map(|name| m.activation(name, Count::Outputs, c));
        let activations = Activations { x, h, raw, qkv, o, delta, gate, up, act, last, last_h };
        Ok(Self { config: config.clone(), embed, layers, norm, head, activations })
    }
}

impl Model for Gemma3 {
    fn record(&self, io: &Io, r: &mut Recorder) {
        let Config { attention: dims, norm_eps: eps, hidden, .. } = self.config;
        let Activations { x, h, raw, qkv, o, delta, gate, up, act, last, last_h } = self.activations;

        r.embed_scaled(io.attention.tokens, io.ids, &self.embed, (hidden as f32).sqrt(), x);
        for layer in &self.layers {
            let scores = Scores { scale: 1.0 / (dims.head_dim as f32).sqrt(), window: layer.window };
            r.rmsnorm(x, layer.attn_norm, eps, h);
            r.linear(h, &layer.q, raw[0]);
            r.linear(h, &layer.k, raw[1]);
            r.linear(h, &layer.v, qkv[2]);
            r.rmsnorm(raw[0], layer.norms[0], eps, qkv[0]);
            r.rmsnorm(raw[1], layer.norms[1], eps, qkv[1]);
            r.rope_store(dims, io.attention, layer.rope, qkv, layer.kv);
            r.attention(dims, io.attention, scores, qkv[0], layer.kv, o);
            r.linear(o, &layer.o, delta);
            r.rmsnorm_add(delta, layer.post_attn_norm, eps, x);

            r.rmsnorm(x, layer.ffn_norm, eps, h);
            r.linear(h, &layer.gate, gate);
            r.linear(h, &layer.up, up);
            r.geglu(gate, up, act);
            r.linear(act, &layer.down, delta);
            r.rmsnorm_add(delta, layer.post_ffn_norm, eps, x);
        }
        
        r.output_norm(io.outputs, x, self.norm, eps, last_h);
        r.linear(last_h, &self.head, io.logits);
    }
}
