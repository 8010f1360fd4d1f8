//! Gemma 2 (arXiv:2408.00118): norms before and after each block, GeGLU, scaled embeddings, soft-capped scores and logits;
//! every other layer sees a sliding window. Gemma 3 (arXiv:2503.19786) normalises the heads of q and k in place of caps; of
//! every six layers five see a window, with rotary frequencies of their own. Names of weights are those of GGUF files, whose
//! norms already hold 1 + w.

use super::{Config, Declare, Io, Model};
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
    norms: Option<[Tensor; 2]>,
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

pub(super) struct Gemma {
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

/// Layers of the two 27B models, whose queries are scaled by hidden / heads instead of the head's own dims.
const LAYERS_27B: [(&str, usize); 2] = [("gemma2", 46), ("gemma3", 62)];

impl Gemma {
    pub fn declare(config: &Config, d: &mut Declare) -> Result<Self> {
        let (c, f, a) = (config.hidden, config.ffn, config.attention);
        let (q_dim, kv_dim) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let global = d.rope(config.rope, Pairs::Halves)?;
        let local = match config.local_rope == config.rope {
            true => global,
            false => d.rope_table("rope_local", config.local_rope, None, Pairs::Halves),
        };
        let embed = d.matrix("token_embd.weight", config.vocab, c)?;
        let mut layers = Vec::new();
        for l in 0..config.layers {
            let name = |part: &str| format!("blk.{l}.{part}");
            let window = config.window_of(l);
            layers.push(Layer {
                attn_norm: d.vector(&name("attn_norm.weight"), c)?,
                q: d.matrix(&name("attn_q.weight"), q_dim, c)?,
                k: d.matrix(&name("attn_k.weight"), kv_dim, c)?,
                v: d.matrix(&name("attn_v.weight"), kv_dim, c)?,
                norms: match config.architecture.as_str() {
                    "gemma2" => None,
                    _ => Some([
                        d.vector(&name("attn_q_norm.weight"), a.head_dim)?,
                        d.vector(&name("attn_k_norm.weight"), a.head_dim)?,
                    ]),
                },
                o: d.matrix(&name("attn_output.weight"), c, q_dim)?,
                post_attn_norm: d.vector(&name("post_attention_norm.weight"), c)?,
                ffn_norm: d.vector(&name("ffn_norm.weight"), c)?,
                gate: d.matrix(&name("ffn_gate.weight"), f, c)?,
                up: d.matrix(&name("ffn_up.weight"), f, c)?,
                down: d.matrix(&name("ffn_down.weight"), c, f)?,
                post_ffn_norm: d.vector(&name("post_ffw_norm.weight"), c)?,
                rope: if window == 0 { global } else { local },
                window,
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

impl Model for Gemma {
    fn record(&self, io: &Io, r: &mut Recorder) {
        let Config { attention: dims, norm_eps: eps, score_cap, hidden, layers, .. } = self.config;
        let Activations { x, h, raw, qkv, o, delta, gate, up, act, last, last_h } = self.activations;
        let is_27b = LAYERS_27B.contains(&(self.config.architecture.as_str(), layers));
        let query_dims = if is_27b { hidden as f32 / dims.heads as f32 } else { dims.head_dim as f32 };

        r.embed_scaled(io.attention.tokens, &self.embed, (hidden as f32).sqrt(), x);
        for layer in &self.layers {
            let scores = Scores { scale: 1.0 / query_dims.sqrt(), window: layer.window, cap: score_cap };
            r.rmsnorm(x, layer.attn_norm, eps, h);
            let [q, k] = if layer.norms.is_some() { raw } else { [qkv[0], qkv[1]] };
            for (w, y) in [(&layer.q, q), (&layer.k, k), (&layer.v, qkv[2])] {
                r.linear(h, w, y);
            }
            for (i, w) in layer.norms.into_iter().flatten().enumerate() {
                r.rmsnorm(raw[i], w, eps, qkv[i]);
            }
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
        r.last_tokens(io.outputs, x, last);
        r.rmsnorm(last, self.norm, eps, last_h);
        r.linear(last_h, &self.head, io.logits);
        if self.config.logit_cap > 0.0 {
            r.softcap(io.logits, self.config.logit_cap);
        }
    }
}
