//! Names of tensors: transformers' to those of GGUF files.

use std::borrow::Cow;

/// How the names of one checkpoint are read.
pub struct Names {
    /// Layers that the configuration has.
    pub layers: u64,
    /// Norms stand before and after each block, as in Gemma.
    pub post_norms: bool,
    /// The text model is a part of one that sees, too.
    pub multimodal: bool,
    /// The output is the embedding, whatever the file holds.
    pub tied: bool,
}

/// What a tensor is.
pub enum Meaning {
    Weight,
    /// The weight of a norm.
    Norm,
    /// Not a weight of the text model.
    Nothing,
    /// Of a layer that the configuration lacks.
    Layer(u64),
}

impl Names {
    pub fn meaning(&self, name: &str) -> Meaning {
        let of_text = self.of_text(name);
        let other = ["vision_tower.", "multi_modal_projector."].iter().any(|part| of_text.starts_with(part));
        if of_text.ends_with("rotary_emb.inv_freq")
            || self.multimodal && other
            || self.tied && of_text == "lm_head.weight"
        {
            return Meaning::Nothing;
        }
        match layer(of_text) {
            Some((l, _)) if l >= self.layers => Meaning::Layer(l),
            _ if of_text.ends_with("norm.weight") => Meaning::Norm,
            _ => Meaning::Weight,
        }
    }

    /// The name in GGUF files; one that they have not stays as it is.
    pub fn gguf<'a>(&self, name: &'a str) -> Cow<'a, str> {
        let of_text = self.of_text(name);
        match of_text {
            "embed_tokens.weight" => return "token_embd.weight".into(),
            "norm.weight" => return "output_norm.weight".into(),
            "lm_head.weight" => return "output.weight".into(),
            _ => {}
        }
        let known = layer(of_text).and_then(|(l, part)| {
            let (part, kind) = part.rsplit_once('.').filter(|(_, kind)| ["weight", "bias"].contains(kind))?;
            Some(format!("blk.{l}.{}.{kind}", self.part(part)?).into())
        });
        known.unwrap_or(Cow::Borrowed(name))
    }

    fn part(&self, part: &str) -> Option<&'static str> {
        Some(match part {
            "input_layernorm" => "attn_norm",
            "self_attn.q_proj" => "attn_q",
            "self_attn.k_proj" => "attn_k",
            "self_attn.v_proj" => "attn_v",
            "self_attn.qkv_proj" => "attn_qkv",
            "self_attn.q_norm" => "attn_q_norm",
            "self_attn.k_norm" => "attn_k_norm",
            "self_attn.o_proj" => "attn_output",
            "post_attention_layernorm" if self.post_norms => "post_attention_norm",
            "post_attention_layernorm" => "ffn_norm",
            "pre_feedforward_layernorm" => "ffn_norm",
            "mlp.gate_proj" => "ffn_gate",
            "mlp.up_proj" => "ffn_up",
            // Rows of gate, then of up.
            "mlp.gate_up_proj" => "ffn_up",
            "mlp.down_proj" => "ffn_down",
            "post_feedforward_layernorm" => "post_ffw_norm",
            _ => return None,
        })
    }

    /// Without what stands before all names of the text model.
    fn of_text<'a>(&self, name: &'a str) -> &'a str {
        let prefixes: &[&str] = match self.multimodal {
            true => &["language_model.model.", "model.language_model.", "language_model.", "model."],
            false => &["model."],
        };
        prefixes.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
    }
}

/// The number of a layer and what follows it.
fn layer(name: &str) -> Option<(u64, &str)> {
    let (number, part) = name.strip_prefix("layers.")?.split_once('.')?;
    // One spelling for each number: "+1" or "01" would be another name for the same layer.
    let canonical = number == "0" || number.starts_with(|c: char| ('1'..='9').contains(&c));
    Some((number.parse().ok().filter(|_| canonical)?, part))
}
