//! A toy of each architecture written as a GGUF file in memory, and every program that the tests, the cases and models record.

use std::collections::HashSet;

use farpast::fetch;
use farpast::format::{F16, F32, Format, Q4_1, Q5_0, Q8_0};
use farpast::memory::{Bytes, Capacity, Element, Memory, Tile};
use farpast::models::{self, Config, Io};
use farpast::program::{Mode, Program, Recorder};
use farpast::weights::Weights;

use crate::cases::{self, Random};
use crate::gguf_writer::GgufWriter;
use crate::model::checkpoint;

/// No two dims are equal, but q's and the residual's in a model whose heads have hidden / heads elements.
#[derive(Clone, Copy)]
pub struct Toy {
    pub name: &'static str,
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
    /// Metadata of its own, after the architecture's name.
    pub metadata: &'static [(&'static str, Field)],
    /// Tensors of divisors of rotary frequencies, one for each of so many pairs.
    pub factors: &'static [(&'static str, usize)],
}

/// A value of metadata.
pub enum Field {
    Size(u32),
    Number(f32),
    Text(&'static str),
}

use Field::{Number, Size, Text};

/// The toys: dims are multiples of 32 where blocks are, and odd where they are not; windows and original contexts are
/// shorter than the sequences of the tests.
pub const ALL: &[Toy] = &[
    Toy { name: "llama", head_dim: 16, hidden: 35, ffn: 93, vocab: 211, tied: false, ..TOY },
    Toy {
        name: "qwen2",
        architecture: "qwen2",
        format: &F16,
        head_dim: 24,
        hidden: 47,
        ffn: 61,
        vocab: 305,
        layers: 2,
        ..TOY
    },
    Toy { name: "qwen3", architecture: "qwen3", format: &Q8_0, heads: 8, head_dim: 16, layers: 2, ..TOY },
    Toy {
        name: "gemma3",
        architecture: "gemma3",
        format: &Q5_0,
        head_dim: 16,
        layers: 7,
        ffn: 128,
        metadata: &[
            ("attention.sliding_window", Size(21)),
            ("rope.scaling.type", Text("linear")),
            ("rope.scaling.factor", Number(8.0)),
        ],
        ..TOY
    },
    Toy { name: "llama_q4_1", format: &Q4_1, heads: 8, kv_heads: 1, hidden: 64, vocab: 131, tied: false, ..TOY },
    Toy {
        name: "llama_window",
        head_dim: 24,
        hidden: 37,
        ffn: 91,
        vocab: 113,
        metadata: &[("attention.sliding_window", Size(19))],
        ..TOY
    },
    Toy {
        name: "llama_rope_freqs",
        head_dim: 24,
        hidden: 41,
        ffn: 85,
        vocab: 127,
        factors: &[("rope_freqs.weight", 12)],
        ..TOY
    },
    Toy {
        name: "llama_yarn",
        head_dim: 40,
        hidden: 43,
        ffn: 87,
        vocab: 139,
        metadata: &[
            ("rope.scaling.type", Text("yarn")),
            ("rope.scaling.factor", Number(4.0)),
            ("rope.scaling.original_context_length", Size(26)),
            ("rope.scaling.attn_factor", Number(0.9)),
            ("rope.scaling.yarn_beta_fast", Number(3.5)),
            ("rope.scaling.yarn_beta_slow", Number(0.25)),
        ],
        ..TOY
    },
    Toy {
        name: "qwen2_yarn",
        architecture: "qwen2",
        head_dim: 32,
        hidden: 45,
        ffn: 77,
        vocab: 149,
        metadata: &[
            ("rope.scaling.type", Text("yarn")),
            ("rope.scaling.factor", Number(2.5)),
            ("rope.scaling.original_context_length", Size(38)),
            ("rope.scaling.yarn_ext_factor", Number(0.75)),
        ],
        ..TOY
    },
    Toy {
        name: "qwen2_linear",
        architecture: "qwen2",
        format: &F16,
        hidden: 39,
        ffn: 81,
        vocab: 151,
        head_dim: 16,
        metadata: &[("rope.scaling.type", Text("linear")), ("rope.scaling.factor", Number(3.0))],
        ..TOY
    },
    Toy {
        name: "llama_partial",
        head_dim: 32,
        hidden: 49,
        ffn: 79,
        vocab: 157,
        metadata: &[("rope.dimension_count", Size(24))],
        ..TOY
    },
    Toy {
        name: "smollm3",
        architecture: "smollm3",
        layers: 5,
        heads: 4,
        head_dim: 24,
        hidden: 51,
        ffn: 83,
        vocab: 163,
        ..TOY
    },
    Toy {
        name: "gemma2",
        architecture: "gemma2",
        head_dim: 40,
        hidden: 53,
        ffn: 73,
        vocab: 167,
        layers: 4,
        metadata: &[
            ("attention.sliding_window", Size(17)),
            ("attn_logit_softcapping", Number(1.5)),
            ("final_logit_softcapping", Number(2.5)),
        ],
        ..TOY
    },
    // Of 96 positions in use, more than the original ones.
    Toy {
        name: "phi3_long",
        architecture: "phi3",
        format: &Q8_0,
        head_dim: 32,
        ffn: 128,
        vocab: 173,
        tied: false,
        metadata: &[
            ("rope.dimension_count", Size(24)),
            ("rope.scaling.original_context_length", Size(33)),
            ("rope.scaling.attn_factor", Number(1.2)),
            ("attention.sliding_window", Size(29)),
        ],
        factors: LONG_AND_SHORT,
        ..TOY
    },
    // No more than them.
    Toy {
        name: "phi3_short",
        architecture: "phi3",
        head_dim: 32,
        hidden: 55,
        ffn: 71,
        vocab: 179,
        metadata: &[
            ("rope.dimension_count", Size(24)),
            ("rope.scaling.original_context_length", Size(CONTEXT as u32)),
            ("rope.scaling.attn_factor", Number(1.1)),
        ],
        factors: LONG_AND_SHORT,
        ..TOY
    },
];

const LONG_AND_SHORT: &[(&str, usize)] = &[("rope_factors_long.weight", 12), ("rope_factors_short.weight", 12)];

const TOY: Toy = Toy {
    name: "",
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
    metadata: &[],
    factors: &[],
};

/// Positions the toy was trained for.
pub const CONTEXT: usize = 96;

impl Toy {
    pub fn weights(&self) -> Weights {
        Weights::from_bytes(format!("{}.gguf", self.name), Bytes::new(self.file().write()))
            .expect("the toy is a valid file")
    }

    /// The file: nothing in it is 0 or 1 throughout, and no two vectors are equal.
    pub fn file(&self) -> GgufWriter {
        let Toy { format, hidden: c, ffn: f, vocab: v, head_dim: d, .. } = *self;
        let (q, kv) = (self.heads * d, self.kv_heads * d);
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let mut file = GgufWriter::new()
            .string("general.architecture", self.architecture)
            .u32(&key("block_count"), self.layers as u32)
            .u32(&key("embedding_length"), c as u32)
            .u32(&key("feed_forward_length"), f as u32)
            .u32(&key("context_length"), CONTEXT as u32)
            .u32(&key("attention.head_count"), self.heads as u32)
            .u32(&key("attention.head_count_kv"), self.kv_heads as u32)
            .u32(&key("attention.key_length"), d as u32)
            .f32(&key("attention.layer_norm_rms_epsilon"), 1e-5)
            .f32(&key("rope.freq_base"), 5000.0);
        for (name, field) in self.metadata {
            file = match field {
                Size(n) => file.u32(&key(name), *n),
                Number(x) => file.f32(&key(name), *x),
                Text(text) => file.string(&key(name), text),
            };
        }
        let mut random = Random(3);
        let mut matrix = |file: GgufWriter, name: &str, rows: usize, cols: usize| {
            let scale = 2.0 / (cols as f32).sqrt();
            let weights: Vec<_> = (0..rows * cols).map(|_| random.signed(scale)).collect();
            file.weights(name, format, rows, cols, &weights)
        };
        file = matrix(file, "token_embd.weight", v, c);
        if !self.tied {
            file = matrix(file, "output.weight", v, c);
        }
        let shapes = match self.architecture {
            "phi3" => vec![("attn_qkv", q + 2 * kv, c), ("ffn_up", 2 * f, c)],
            _ => vec![("attn_q", q, c), ("attn_k", kv, c), ("attn_v", kv, c), ("ffn_gate", f, c), ("ffn_up", f, c)],
        };
        for l in 0..self.layers {
            for (name, rows, cols) in shapes.iter().copied().chain([("attn_output", c, q), ("ffn_down", c, f)]) {
                file = matrix(file, &format!("blk.{l}.{name}.weight"), rows, cols);
            }
        }
        let mut random = Random(5);
        let mut vector = |file: GgufWriter, name: &str, len: usize, from: f32, to: f32| {
            let values: Vec<_> = (0..len).map(|_| from + (to - from) * random.unit()).collect();
            file.vector(name, &values)
        };
        for l in 0..self.layers {
            let mut norms = vec![("attn_norm", c), ("ffn_norm", c)];
            if ["gemma2", "gemma3"].contains(&self.architecture) {
                norms.extend([("post_attention_norm", c), ("post_ffw_norm", c)]);
            }
            if ["gemma3", "qwen3"].contains(&self.architecture) {
                norms.extend([("attn_q_norm", d), ("attn_k_norm", d)]);
            }
            for (name, len) in norms {
                file = vector(file, &format!("blk.{l}.{name}.weight"), len, 0.5, 1.5);
            }
            let biases = [("attn_q", q), ("attn_k", kv), ("attn_v", kv)];
            for (name, len) in biases.into_iter().filter(|_| self.architecture == "qwen2") {
                file = vector(file, &format!("blk.{l}.{name}.bias"), len, -1.0, 1.0);
            }
        }
        for (name, len) in self.factors {
            file = vector(file, name, *len, 0.8, 5.0);
        }
        vector(file, "output_norm.weight", c, 0.5, 1.5)
    }
}

/// What engines record for a checkpoint, with subgroups and without.
pub fn model_programs(weights: &Weights, kv: Element, context: usize) -> Vec<Program> {
    let tiles = [Tile::SOFTWARE, Tile::SUBGROUPS, Tile::HARDWARE];
    tiles.into_iter().flat_map(|tile| programs_of(weights, kv, context, tile)).collect()
}

fn programs_of(weights: &Weights, kv: Element, context: usize, tile: Tile) -> Vec<Program> {
    let config = Config::read(weights).expect("a supported model");
    let binding = 64 << 20;
    let capacity = Capacity { tokens: 64, outputs: 16, sequences: 4, context, pages: 64, kv, binding };
    let mut memory = Memory::new(capacity);
    memory.tile = tile;
    let io = Io::declare(&config, None, &mut memory);
    let model = models::declare(&config, weights, &mut memory).expect("a complete model");
    let record = |mode| {
        let mut r = Recorder::new(&memory, mode);
        model.record(&io, &mut r);
        io.record_draw(&mut r);
        r.finish()
    };
    [Mode::Prefill, Mode::Batch, Mode::Decode].map(record).into()
}

/// Every program there is: the cases', the toys' and the real models'.
pub fn programs() -> Vec<Program> {
    let mut seen = HashSet::new();
    let cases = cases::all().into_iter().map(|case| case.setup().program);
    let kvs = Element::KV.map(|(_, kv)| kv);
    let toys = ALL.iter().flat_map(|toy| kvs.map(|kv| model_programs(&toy.weights(), kv, CONTEXT))).flatten();
    let open = |m: &fetch::Packaged| Weights::open(checkpoint(m.name)).expect("a packaged model opens");
    let real = fetch::MODELS.iter().flat_map(|m| kvs.map(|kv| model_programs(&open(m), kv, 2048))).flatten();
    let mut programs: Vec<_> = cases.chain(toys).chain(real).collect();
    for p in &mut programs {
        p.dispatches.retain(|d| seen.insert((d.kernel.name, d.spec.clone())));
    }
    programs
}
