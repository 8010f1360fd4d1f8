//! Gemma 2 (arXiv:2408.00118): norms before and after each block, GeGLU, scaled embeddings, soft-capped scores and logits;
//! every other layer sees a sliding window. Gemma 3 (arXiv:2503.19786) normalises the heads of q and k in place of caps; of
//! every six layers five see a window, with rotary frequencies of their own. Names of weights are those of GGUF files, whose
//! norms already hold 1 + w.

use super::blocks::{Gated, Qkv};
use super::{Config, Declare, Io, Model};
use crate::error::Result;
use crate::kernels::{Gate, Pairs, Scores};
use crate::memory::{Tensor, Weight};
use crate::program::Recorder;

struct Layer {
    qkv: Qkv,
    o: Weight,
    post_attn_norm: Tensor,
    window: usize,
    gated: Gated,
    down: Weight,
    post_ffn_norm: Tensor,
}

pub(super) struct Gemma {
    config: Config,
    embed: Weight,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Weight,
    /// The residual stream.
    x: Tensor,
    /// Attention's answer.
    o: Tensor,
    /// What a block adds to the stream, before its norm.
    delta: Tensor,
}

/// Layers of the two 27B models, whose queries are scaled by hidden / heads instead of the head's own dims.
const LAYERS_27B: [(&str, usize); 2] = [("gemma2", 46), ("gemma3", 62)];

impl Gemma {
    pub fn declare(config: &Config, d: &mut Declare) -> Result<Self> {
        let (c, q_dim) = (config.hidden, config.attention.heads * config.attention.head_dim);
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
                qkv: Qkv::declare(config, l, if window == 0 { global } else { local }, d)?,
                o: d.matrix(&name("attn_output.weight"), c, q_dim)?,
                post_attn_norm: d.vector(&name("post_attention_norm.weight"), c)?,
                window,
                gated: Gated::declare(config, l, Gate::Gelu, d)?,
                down: d.matrix(&name("ffn_down.weight"), c, config.ffn)?,
                post_ffn_norm: d.vector(&name("post_ffw_norm.weight"), c)?,
            });
        }
        let norm = d.vector("output_norm.weight", c)?;
        let head = d.head(config, &embed)?;
        let (x, o, delta) = (d.token("x", c), d.token("o", q_dim), d.token("delta", c));
        Ok(Self { config: config.clone(), embed, layers, norm, head, x, o, delta })
    }
}

impl Model for Gemma {
    fn record(&self, io: &Io, r: &mut Recorder) {
        let Self { config, x, o, delta, .. } = self;
        let Config { attention: dims, norm_eps: eps, hidden, .. } = *config;
        let is_27b = LAYERS_27B.contains(&(config.architecture.as_str(), config.layers));
        let query_dims = if is_27b { hidden as f32 / dims.heads as f32 } else { dims.head_dim as f32 };

        r.embed_scaled(io.attention.tokens, io.ids, &self.embed, (hidden as f32).sqrt(), *x);
        for layer in &self.layers {
            let scores = Scores { scale: 1.0 / query_dims.sqrt(), window: layer.window, cap: config.score_cap };
            let q = layer.qkv.record(config, io.attention, *x, r);
            r.attention(dims, io.attention, scores, q, layer.qkv.pages, *o);
            r.linear(*o, &layer.o, *delta);
            r.rmsnorm_add(*delta, layer.post_attn_norm, eps, *x);

            let units = layer.gated.record(*x, r);
            r.linear(units, &layer.down, *delta);
            r.rmsnorm_add(*delta, layer.post_ffn_norm, eps, *x);
        }
        r.output_norm(io.outputs, *x, self.norm, eps, io.last);
        r.linear(io.last, &self.head, io.logits);
        if config.logit_cap > 0.0 {
            r.softcap(io.logits, config.logit_cap);
        }
    }
}
