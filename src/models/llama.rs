//! Llama (arXiv:2302.13971) and models of its shape: SmolLM2; Mistral (arXiv:2310.06825), with a sliding window; SmolLM3, some
//! of whose layers have no rotary embedding (arXiv:2501.18795); Qwen2 (arXiv:2407.10671), whose q, k and v have biases; Qwen3
//! (arXiv:2505.09388), which normalises the heads of q and k; Phi-3 (arXiv:2404.14219), whose files stack q, k and v in one
//! matrix, gate and up in another. Names of weights are those of GGUF files.

use super::blocks::{Gated, Qkv};
use super::{Config, Declare, Io, Model, is_last_of};
use crate::error::Result;
use crate::kernels::{Gate, Scores};
use crate::memory::{Tensor, Weight};
use crate::program::Recorder;

struct Layer {
    qkv: Qkv,
    o: Weight,
    window: usize,
    gated: Gated,
    down: Weight,
}

pub(super) struct Llama {
    config: Config,
    embed: Weight,
    layers: Vec<Layer>,
    norm: Tensor,
    head: Weight,
    /// The residual stream.
    x: Tensor,
    /// Attention's answer.
    o: Tensor,
}

impl Llama {
    pub fn declare(config: &Config, d: &mut Declare) -> Result<Self> {
        let (c, q_dim) = (config.hidden, config.attention.heads * config.attention.head_dim);
        let rope = d.rope(config.rope, config.pairs)?;
        let embed = d.matrix("token_embd.weight", config.vocab, c)?;
        let mut layers = Vec::new();
        for l in 0..config.layers {
            let rope = if is_last_of(config.nope_every, l) { rope.none() } else { rope };
            layers.push(Layer {
                qkv: Qkv::declare(config, l, rope, d)?,
                o: d.matrix(&format!("blk.{l}.attn_output.weight"), c, q_dim)?,
                window: config.window_of(l),
                gated: Gated::declare(config, l, Gate::Silu, d)?,
                down: d.matrix(&format!("blk.{l}.ffn_down.weight"), c, config.ffn)?,
            });
        }
        let norm = d.vector("output_norm.weight", c)?;
        let head = d.head(config, &embed)?;
        let (x, o) = (d.token("x", c), d.token("o", q_dim));
        Ok(Self { config: config.clone(), embed, layers, norm, head, x, o })
    }
}

impl Model for Llama {
    fn record(&self, io: &Io, r: &mut Recorder) {
        let Self { config, x, o, .. } = self;
        let scale = 1.0 / (config.attention.head_dim as f32).sqrt();

        r.embed(io.attention.tokens, io.ids, &self.embed, *x);
        for layer in &self.layers {
            let scores = Scores { scale, window: layer.window, cap: config.score_cap };
            let q = layer.qkv.record(config, io.attention, *x, r);
            r.attention(config.attention, io.attention, scores, q, layer.qkv.pages, *o);
            r.linear_add(*o, &layer.o, *x);

            let units = layer.gated.record(*x, r);
            r.linear_add(units, &layer.down, *x);
        }
        r.output_norm(io.outputs, *x, self.norm, config.norm_eps, io.last);
        r.linear(io.last, &self.head, io.logits);
    }
}
