//! A toy of each architecture written as a GGUF file in memory, and every program that the tests, the cases and models record.

use std::collections::HashSet;

use farpast::fetch;
use farpast::format::{F16, F32, Format, Q4_1, Q5_0, Q8_0};
use farpast::memory::{Bytes, Capacity, Element, Memory};
use farpast::models::{self, Config, Io};
use farpast::program::{Mode, Program, Recorder};
use farpast::weights::Weights;

use crate::cases::{self, Random};
use crate::gguf_writer::GgufWriter;
use crate::model::checkpoint;

/// No two dims are equal, but q's and the residual's in a model whose heads have hidden / heads elements.
pub struct Toy {
    pub architecture: &'static str,
    pub format: &'static Format,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub hidden: usize,
    pub ffn: usize,
    pub vocab: usize,
    pub tied: bool,
}

/// The toy in each format: dims are multiples of 32 where blocks are, and odd where they are not.
pub const ALL: &[Toy] = &[
    Toy { architecture: "llama", format: &F32, head_dim: 16, hidden: 35, ffn: 93, vocab: 211, tied: false, ..TOY },
    Toy { architecture: "qwen2", format: &F16, head_dim: 24, hidden: 47, ffn: 61, vocab: 305, layers: 2, ..TOY },
    Toy { architecture: "qwen3", format: &Q8_0, heads: 8, head_dim: 16, layers: 2, ..TOY },
    Toy { architecture: "gemma3", format: &Q5_0, head_dim: 16, layers: 7, ffn: 128, ..TOY },
    Toy { architecture: "llama", format: &Q4_1, heads: 8, kv_heads: 1, hidden: 64, vocab: 131, tied: false, ..TOY },
];

const TOY: Toy = Toy {
    architecture: "llama",
    format: &F32,
    layers: 3,
    heads: 6,
    kv_heads: 2,
    head_dim: 8,
    hidden: 96,
    ffn: 160,
    vocab: 257,
    tied: true,
};

/// Positions the toy was trained for.
pub const CONTEXT: usize = 96;

impl Toy {
    pub fn weights(&self) -> Weights {
        let Toy { format, hidden: c, ffn: f, vocab: v, .. } = *self;
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        let mut random = Random(3);
        let mut draw = |n: usize, scale: f32| (0..n).map(|_| random.signed(scale)).collect::<Vec<_>>();
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let mut file = GgufWriter::new()
            .string("general.architecture", self.architecture)
            .u32(&key("block_count"), self.layers as u32)
            .u32(&key("embedding_length"), c as u32)
            .u32(&key("feed_forward_length"), f as u32)
            .u32(&key("context_length"), CONTEXT as u32)
            .u32(&key("attention.head_count"), self.heads as u32)
            .u32(&key("attention.head_count_kv"), self.kv_heads as u32)
            .u32(&key("attention.key_length"), self.head_dim as u32)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .f32(&key("rope.freq_base"), 5000.0);
        if self.architecture == "gemma3" {
            file = file.u32(&key("attention.sliding_window"), 21);
        }
        let mut matrix = |file: GgufWriter, name: &str, rows: usize, cols: usize| {
            file.weights(name, format, rows, cols, &draw(rows * cols, 2.0 / (cols as f32).sqrt()))
        };
        file = matrix(file, "token_embd.weight", v, c);
        if !self.tied {
            file = matrix(file, "output.weight", v, c);
        }
        for l in 0..self.layers {
            let shapes = [
                ("attn_q", q, c),
                ("attn_k", kv, c),
                ("attn_v", kv, c),
                ("attn_output", c, q),
                ("ffn_gate", f, c),
                ("ffn_up", f, c),
                ("ffn_down", c, f),
            ];
            for (name, rows, cols) in shapes {
                file = matrix(file, &format!("blk.{l}.{name}.weight"), rows, cols);
            }
        }
        let vector = |file: GgufWriter, name: &str, len: usize| {
            let values: Vec<_> = (0..len).map(|i| 0.5 + (i % 7) as f32 / 7.0).collect();
            file.vector(name, &values)
        };
        for l in 0..self.layers {
            let mut vectors = vec![("attn_norm.weight", c), ("ffn_norm.weight", c)];
            match self.architecture {
                "qwen2" => vectors.extend([("attn_q.bias", q), ("attn_k.bias", kv), ("attn_v.bias", kv)]),
                "gemma3" => {
                    vectors.extend(["attn_q_norm.weight", "attn_k_norm.weight"].map(|name| (name, self.head_dim)));
                    vectors.extend(["post_attention_norm.weight", "post_ffw_norm.weight"].map(|name| (name, c)));
                }
                "qwen3" => {
                    vectors.extend(["attn_q_norm.weight", "attn_k_norm.weight"].map(|name| (name, self.head_dim)))
                }
                _ => {}
            }
            for (name, len) in vectors {
                file = vector(file, &format!("blk.{l}.{name}"), len);
            }
        }
        let bytes = vector(file, "output_norm.weight", c).write();
        Weights::from_bytes("toy.gguf", Bytes::new(bytes)).expect("the toy is a valid file")
    }
}

/// What an engine records for a checkpoint.
fn model_programs(weights: &Weights, kv: Element, context: usize) -> Vec<Program> {
    let config = Config::read(weights).expect("a supported model");
    let binding = 64 << 20;
    let capacity = Capacity { tokens: 64, outputs: 16, sequences: 4, context, pages: 64, kv, binding };
    let mut memory = Memory::new(capacity);
    let io = Io::declare(&config, &mut memory);
    let model = models::declare(&config, weights, &mut memory).expect("a complete model");
    let record = |mode| {
        let mut r = Recorder::new(&memory, mode);
        model.record(&io, &mut r);
        r.sample(io.logits, io.sampling, io.ids);
        r.finish()
    };
    [Mode::Prefill, Mode::Decode].map(record).into()
}

/// Every program there is: the cases', the toys' and the real models'.
pub fn programs() -> Vec<Program> {
    let mut seen = HashSet::new();
    let cases = cases::all().into_iter().map(|case| case.setup().program);
    let kvs = [Element::F16, Element::F32];
    let toys = ALL.iter().flat_map(|toy| kvs.map(|kv| model_programs(&toy.weights(), kv, CONTEXT))).flatten();
    let open = |m: &fetch::Packaged| Weights::open(checkpoint(m.name)).expect("a packaged model opens");
    let real = fetch::MODELS.iter().flat_map(|m| kvs.map(|kv| model_programs(&open(m), kv, 2048))).flatten();
    let mut programs: Vec<_> = cases.chain(toys).chain(real).collect();
    for p in &mut programs {
        p.dispatches.retain(|d| seen.insert((d.kernel.name, d.spec.clone())));
    }
    programs
}
