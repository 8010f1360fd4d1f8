//! A small model with random weights in a GGUF file: byte tokens and the two control tokens of ChatML.

use std::path::PathBuf;

use farpast::format::{F16, Format, Q4_1, Q4_K, Q8_0};

use crate::cases::Random;
use crate::gguf_writer::GgufWriter;

pub const LAYERS: usize = 2;
const HIDDEN: usize = 64;
const FFN: usize = 96;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 16;
pub const CONTEXT: usize = 256;

/// The file, with `template` for ChatML where that is given.
pub fn toy(template: Option<&str>) -> GgufWriter {
    toy_of(7, template)
}

/// The same with other weights.
pub fn toy_of(seed: u64, template: Option<&str>) -> GgufWriter {
    let tokens: Vec<String> = (0..=255).map(letter).chain(["<|im_start|>".into(), "<|im_end|>".into()]).collect();
    let types: Vec<i32> = tokens.iter().map(|token| if token.starts_with("<|") { 3 } else { 1 }).collect();
    let mut file = GgufWriter::new()
        .string("general.architecture", "llama")
        .string("general.name", "Toy")
        .u32("llama.block_count", LAYERS as u32)
        .u32("llama.embedding_length", HIDDEN as u32)
        .u32("llama.feed_forward_length", FFN as u32)
        .u32("llama.attention.head_count", HEADS as u32)
        .u32("llama.attention.head_count_kv", KV_HEADS as u32)
        .u32("llama.context_length", CONTEXT as u32)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "smollm")
        .strings("tokenizer.ggml.tokens", &tokens)
        .i32s("tokenizer.ggml.token_type", &types)
        .strings("tokenizer.ggml.merges", &[""; 0])
        .u32("tokenizer.ggml.bos_token_id", 256)
        .u32("tokenizer.ggml.eos_token_id", 257);
    if let Some(template) = template {
        file = file.string("tokenizer.chat_template", template);
    }
    let mut random = Random(seed);
    let mut matrix = |file: GgufWriter, name: &str, format: &Format, rows: usize, cols: usize| {
        let weights: Vec<_> = (0..rows * cols).map(|_| uniform(&mut random) / (cols as f32).sqrt() * 3.0).collect();
        file.weights(name, format, rows, cols, &weights)
    };
    file = matrix(file, "token_embd.weight", &Q8_0, tokens.len(), HIDDEN);
    for l in 0..LAYERS {
        let name = |part: &str| format!("blk.{l}.{part}.weight");
        file = file.vector(&name("attn_norm"), &[1.0; HIDDEN]).vector(&name("ffn_norm"), &[1.0; HIDDEN]);
        file = matrix(file, &name("attn_q"), &Q4_1, HEADS * HEAD_DIM, HIDDEN);
        file = matrix(file, &name("attn_k"), &F16, KV_HEADS * HEAD_DIM, HIDDEN);
        file = matrix(file, &name("attn_v"), &Q8_0, KV_HEADS * HEAD_DIM, HIDDEN);
        file = matrix(file, &name("attn_output"), &Q4_1, HIDDEN, HEADS * HEAD_DIM);
        file = matrix(file, &name("ffn_gate"), &Q4_1, FFN, HIDDEN);
        file = matrix(file, &name("ffn_up"), &Q8_0, FFN, HIDDEN);
        file = matrix(file, &name("ffn_down"), &Q4_1, HIDDEN, FFN);
    }
    file.vector("output_norm.weight", &[1.0; HIDDEN])
}

/// Weights in the shapes of TinyLlama, 1.1 billion of them, in Q4_K, with the tokens of the toy and fillers.
pub fn billion() -> GgufWriter {
    const SHAPES: [(&str, usize, usize); 7] = [
        ("attn_q", 2048, 2048),
        ("attn_k", 256, 2048),
        ("attn_v", 256, 2048),
        ("attn_output", 2048, 2048),
        ("ffn_gate", 5632, 2048),
        ("ffn_up", 5632, 2048),
        ("ffn_down", 2048, 5632),
    ];
    let tokens: Vec<String> = (0..=255).map(letter).chain((256..32000).map(|i| format!("filler{i}"))).collect();
    let mut file = GgufWriter::new()
        .string("general.architecture", "llama")
        .u32("llama.block_count", 22)
        .u32("llama.embedding_length", 2048)
        .u32("llama.feed_forward_length", 5632)
        .u32("llama.attention.head_count", 32)
        .u32("llama.attention.head_count_kv", 4)
        .u32("llama.context_length", 2048)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5)
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "smollm")
        .strings("tokenizer.ggml.tokens", &tokens)
        .strings("tokenizer.ggml.merges", &[""; 0])
        .u32("tokenizer.ggml.eos_token_id", 31999);
    let mut random = Random(8);
    // Rows are alike: small scales and random quants.
    let mut matrix = |file: GgufWriter, name: &str, rows: usize, cols: usize| {
        let mut row = random.bytes(cols / Q4_K.block_len * Q4_K.block_bytes);
        for block in row.chunks_exact_mut(Q4_K.block_bytes) {
            block[..4].copy_from_slice(&[0, 1, 0, 1]);
        }
        file.tensor(name, &Q4_K, rows, cols, row.repeat(rows))
    };
    file = matrix(file, "token_embd.weight", tokens.len(), 2048);
    file = matrix(file, "output.weight", tokens.len(), 2048);
    for l in 0..22 {
        file = file.vector(&format!("blk.{l}.attn_norm.weight"), &[1.0; 2048]);
        file = file.vector(&format!("blk.{l}.ffn_norm.weight"), &[1.0; 2048]);
        for (part, rows, cols) in SHAPES {
            file = matrix(file, &format!("blk.{l}.{part}.weight"), rows, cols);
        }
    }
    file.vector("output_norm.weight", &[1.0; 2048])
}

/// A file of a test's own under the system's folder for such.
pub fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("farpast-{}-{name}", std::process::id()))
}

fn uniform(random: &mut Random) -> f32 {
    random.next() as i32 as f32 / i32::MAX as f32
}

/// How byte-level BPE spells a byte: printable ones stand for themselves, the others follow from U+0100 on.
fn letter(byte: u8) -> String {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let c = match printable(&byte) {
        true => byte as char,
        false => char::from_u32(256 + (0..byte).filter(|b| !printable(b)).count() as u32).expect("below U+0200"),
    };
    c.into()
}
