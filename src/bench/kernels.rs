//! Kernels in the shapes that models of some size give them.

use half::f16;

use crate::engine::{scattered, tile};
use crate::error::{Error, Result};
use crate::format::{self, Format, Q4_K};
use crate::gpu::{Buffers, Gpu, Kind};
use crate::kernel::{Cost, Count, Step};
use crate::kernels::{AttentionDims, AttentionInputs, Cover, FarInputs, Gate, Norm, Pairs, Rope, Scores};
use crate::kv::PAGE;
use crate::memory::{Bytes, Capacity, Element, Host, Memory, Tensor, Weight, WeightRows, stride};
use crate::program::{Mode, Program};

/// The shapes of a model's layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// What it is called.
    pub name: &'static str,
    /// C: elements of the residual stream.
    pub hidden: usize,
    /// F: elements between gate/up and down.
    pub ffn: usize,
    /// Heads.
    pub attention: AttentionDims,
}

/// Those that are timed: of Llama 3.2 1B and of Llama 2 7B.
pub static SHAPES: &[Shape] = &[
    Shape { name: "1b", hidden: 2048, ffn: 8192, attention: AttentionDims { heads: 32, kv_heads: 8, head_dim: 64 } },
    Shape { name: "7b", hidden: 4096, ffn: 11008, attention: AttentionDims { heads: 32, kv_heads: 32, head_dim: 128 } },
];

impl Shape {
    /// The shape of this name.
    pub fn named(name: &str) -> Result<&'static Shape> {
        SHAPES.iter().find(|shape| shape.name == name).ok_or_else(|| {
            let names: Vec<_> = SHAPES.iter().map(|shape| shape.name).collect();
            Error::request("shape", names.join(" or "), name)
        })
    }
}

/// One kernel in one shape.
pub struct Case {
    /// Kernel, format, shape and tokens.
    pub name: String,
    /// Holds all its tensors.
    pub memory: Memory,
    /// Dispatches of the one kernel.
    pub program: Program,
    /// What changes from step to step.
    pub step: Step,
    inputs: Vec<(Tensor, Vec<u32>)>,
}

impl Case {
    /// What each dispatch of one run costs.
    pub fn costs(&self) -> Vec<Cost> {
        self.program.dispatches.iter().map(|d| d.cost(&self.step, &self.memory)).collect()
    }

    /// Bytes on the device.
    pub fn bytes(&self) -> usize {
        self.memory.tensors().iter().map(|t| t.bytes()).sum()
    }

    /// Its tensors on the device, with numbers around 1 in all that is read.
    pub fn allocate(&self, gpu: &Gpu) -> Result<Buffers> {
        let buffers = gpu.allocate(&self.memory, |_, _| ())?;
        for t in self.memory.handles() {
            let desc = self.memory.desc(t);
            let len = desc.rows * stride(desc.cols);
            let host = match desc.element {
                Element::F32 if !desc.is_table => Host::F32((0..len).map(scattered).collect()),
                Element::F16 => Host::F16((0..len).map(|i| f16::from_f32(scattered(i))).collect()),
                Element::Q8_0 | Element::Q4_0 => {
                    let mut blocks = desc.host()?;
                    // A scale of 0.065.
                    blocks.bytes_mut().fill(0x2c);
                    blocks
                }
                _ => continue,
            };
            gpu.write_host(&buffers, t, &host)?;
        }
        for (t, words) in &self.inputs {
            gpu.write(&buffers, *t, bytemuck::cast_slice(words))?;
        }
        Ok(buffers)
    }
}

/// Names of the kernels in [`cases`].
const KERNELS: &[&str] = &[
    "linear",
    "linear_glu",
    "linear_rope",
    "attention_decode",
    "attention_merge",
    "attention_prefill",
    "aoc_lookup",
    "rmsnorm",
    "norm_rope_store",
    "swiglu",
];

/// The cases of `shape`, of all kernels or of `kernels` only: each is made when it is asked for. Software drivers get fewer and
/// smaller ones.
pub fn cases<'a>(gpu: &'a Gpu, shape: &'a Shape, kernels: &[String]) -> Result<impl Iterator<Item = Case> + use<'a>> {
    if let Some(unknown) = kernels.iter().find(|name| !KERNELS.contains(&name.as_str())) {
        return Err(Error::request("kernel", format!("one of {}", KERNELS.join(", ")), unknown));
    }
    use Element::{F16, Q4_0, Q8_0};
    let software = gpu.caps().kind == Kind::Software;
    let formats: &[&'static Format] = if software { &[&Q4_K] } else { &[&Q4_K, &format::Q8_0, &format::F16] };
    let depths: &[usize] = &[512, 2048, 4096, 8192];
    let (chunk, c, f) = (if software { 32 } else { 512 }, shape.hidden, shape.ffn);
    let mut plans: Vec<Plan> = Vec::new();
    for t in [1, chunk] {
        for &format in formats {
            plans.extend([(c, c), (f, c), (c, f)].map(|(n, k)| Plan { t, what: What::Linear { format, n, k } }));
        }
        plans.push(Plan { t, what: What::Glu(formats[0]) });
        plans.push(Plan { t, what: What::Qkv(formats[0]) });
    }
    for &depth in depths {
        let attention = |kernel, kv, shuffled| Plan { t: 1, what: What::Attention { depth, kernel, kv, shuffled } };
        plans.extend([F16, Q8_0, Q4_0].map(|kv| attention("attention_decode", kv, false)));
        plans.push(attention("attention_decode", F16, true));
        plans.push(attention("attention_merge", F16, false));
    }
    // Twice and eight times the largest tree, too.
    plans.extend([512, 2048, 4096, 8192, 16384, 65536].map(|rows| Plan { t: 1, what: What::Far { rows } }));
    for &depth in &depths[..2] {
        let prefill =
            |kv| Plan { t: chunk, what: What::Attention { depth, kernel: "attention_prefill", kv, shuffled: false } };
        plans.extend([F16, Q8_0, Q4_0].map(prefill));
    }
    plans.extend([What::Norm, What::Rope, What::Units].map(|what| Plan { t: chunk, what }));
    let wanted = |plan: &Plan| kernels.is_empty() || kernels.iter().any(|name| name == plan.what.kernel());
    let plans: Vec<_> = plans.into_iter().filter(wanted).collect();
    Ok(plans.into_iter().map(move |plan| plan.case(gpu, shape)))
}

/// A case before its memory is declared.
struct Plan {
    /// Tokens of the step: decode where it is 1.
    t: usize,
    what: What,
}

enum What {
    Linear {
        format: &'static Format,
        n: usize,
        k: usize,
    },
    Glu(&'static Format),
    Qkv(&'static Format),
    /// Of queries behind `depth` positions, stored as `kv`, whose pages lie in order or `shuffled`.
    Attention {
        depth: usize,
        kernel: &'static str,
        kv: Element,
        shuffled: bool,
    },
    /// Of queries with so many rows in trees of at most TREE.
    Far {
        rows: usize,
    },
    Norm,
    Rope,
    Units,
}

/// Rows of the largest tree that is timed, and nodes that are expanded at each depth.
const TREE: usize = 8192;
const WIDTH: u32 = 32;

impl What {
    fn kernel(&self) -> &'static str {
        match self {
            What::Linear { .. } => "linear",
            What::Glu(_) => "linear_glu",
            What::Qkv(_) => "linear_rope",
            What::Attention { kernel, .. } => kernel,
            What::Far { .. } => "aoc_lookup",
            What::Norm => "rmsnorm",
            What::Rope => "norm_rope_store",
            What::Units => "swiglu",
        }
    }
}

impl Plan {
    fn case(&self, gpu: &Gpu, shape: &Shape) -> Case {
        let (t, a, c, f) = (self.t, shape.attention, shape.hidden, shape.ffn);
        let (depth, shuffled, stored) = match self.what {
            What::Attention { depth, shuffled, kv, .. } => (depth, shuffled, kv),
            _ => (0, false, Element::F16),
        };
        let pages = match self.what {
            What::Far { rows } => Cover::kept_pages(a.heads / a.kv_heads) + rows / PAGE + 2 * rows / Cover::LEAF / PAGE,
            _ => (depth + t).div_ceil(PAGE),
        };
        let mut far = Vec::new();
        let mut m = Memory::new(Capacity {
            tokens: t,
            outputs: 1,
            sequences: 1,
            context: pages * PAGE,
            pages,
            kv: stored,
            binding: gpu.caps().max_binding,
        });
        m.tile = tile(Some(gpu.caps()));
        let inputs = AttentionInputs {
            tokens: m.input("tokens", Count::Tokens, 4),
            sequences: m.input("sequences", Count::Sequences, 4),
            tiles: m.input("tiles", Count::Tiles, 4),
            pages: m.tensor("pages", Element::U32, pages, 2),
            parts: m.tensor(
                "parts",
                Element::F32,
                if t == 1 { AttentionDims::parts(pages) * a.heads } else { 1 },
                a.head_dim + 4,
            ),
            near: m.tensor("near", Element::F32, t * a.heads, 4),
            far: None,
        };
        let (q_dim, kv_dim) = (a.heads * a.head_dim, a.kv_heads * a.head_dim);
        let kv_rows = pages * a.kv_heads * PAGE;
        let kv = |m: &mut Memory| ["k", "v"].map(|name| m.tensor(name, stored, kv_rows, a.head_dim));
        let token = |m: &mut Memory, cols| m.activation("", Count::Tokens, cols);
        let norm = |m: &mut Memory| Norm { gain: m.table("gain", c, &vec![1.0; c]), eps: 1e-5, h: token(m, c) };
        let rope = |m: &mut Memory| {
            let turns: Vec<f32> = (0..pages * PAGE * a.head_dim / 2).flat_map(|_| [0.8, 0.6]).collect();
            Rope { table: m.table("rope", a.head_dim, &turns), dims: a.head_dim, pairs: Pairs::Neighbours }
        };
        let mode = if t == 1 { Mode::Decode } else { Mode::Prefill };
        let (program, of) = match self.what {
            What::Linear { format, n, k } => {
                let (w, x, y) = (weight(&mut m, format, n, k), token(&mut m, k), token(&mut m, n));
                (Program::record(&m, mode, |r| r.linear(x, &w, y)), format!(" {} [{n}, {k}]", format.name))
            }
            What::Glu(format) => {
                let w = pairs(&mut m, format, 2 * f, c);
                let (x, norm, y) = (token(&mut m, c), norm(&mut m), token(&mut m, f));
                (
                    Program::record(&m, mode, |r| r.linear_glu(x, norm, &w, Gate::Silu, y)),
                    format!(" {} [{}, {c}]", format.name, 2 * f),
                )
            }
            What::Qkv(format) => {
                let rows = q_dim + 2 * kv_dim;
                let w = [pairs(&mut m, format, rows, c)];
                let (x, norm, rope, q, kv) =
                    (token(&mut m, c), norm(&mut m), rope(&mut m), token(&mut m, q_dim), kv(&mut m));
                let record =
                    Program::record(&m, mode, |r| r.linear_rope(a, inputs, x, norm, &w, norm.gain, rope, q, kv));
                (record, format!(" {} [{rows}, {c}]", format.name))
            }
            What::Attention { depth, .. } => {
                let (q, kv, o) = (token(&mut m, q_dim), kv(&mut m), token(&mut m, q_dim));
                let scores = Scores { scale: 0.1, window: 0, cap: 0.0 };
                let order = if shuffled { ", shuffled pages" } else { "" };
                let of_kv = stored.kv_name().unwrap_or_default();
                let heads = format!(" {} / {} heads of {} @ d{depth} {of_kv}{order}", a.heads, a.kv_heads, a.head_dim);
                (Program::record(&m, mode, |r| r.attention(a, inputs, scores, q, kv, o)), heads)
            }
            What::Far { rows } => {
                let (q, kv, o) = (token(&mut m, q_dim), kv(&mut m), token(&mut m, q_dim));
                let trees = rows.div_ceil(TREE);
                let entries = a.kv_heads + pages;
                let layer = m.words("layer", [0; 4]);
                let inputs_of_far = FarInputs {
                    layers: layer,
                    trials: layer,
                    far: m.tensor("far", Element::U32, 1 + trees, 4),
                    lists: m.tensor("lists", Element::U32, entries, 1),
                };
                let cover = Cover {
                    rows: TREE,
                    gap: f32::MAX,
                    lanes: m.tile.lanes,
                    heads: a.kv_heads,
                    kv_heads: 0,
                    group: a.heads / a.kv_heads,
                };
                far = inputs_of_rows(rows, cover, inputs_of_far);
                let scores = Scores { scale: 0.1, window: 0, cap: 0.0 };
                let record = Program::record(&m, mode, |r| {
                    r.aoc_lookup(
                        a,
                        cover,
                        layer,
                        scores,
                        inputs.tokens,
                        inputs_of_far,
                        [q, kv[0], kv[1], inputs.near, o],
                    );
                });
                (record, format!(" {} / {} heads of {}, {rows} rows", a.heads, a.kv_heads, a.head_dim))
            }
            What::Norm => {
                let (x, norm) = (token(&mut m, c), norm(&mut m));
                (Program::record(&m, mode, |r| r.rmsnorm(x, norm.gain, norm.eps, norm.h)), format!(" [{c}]"))
            }
            What::Rope => {
                let (x, q) = (token(&mut m, q_dim + 2 * kv_dim), token(&mut m, q_dim));
                let gains = m.table("gains", 2 * a.head_dim, &vec![1.0; 2 * a.head_dim]);
                let (rope, kv) = (rope(&mut m), kv(&mut m));
                let heads = format!(" {} + {} heads of {}", a.heads, a.kv_heads, a.head_dim);
                (Program::record(&m, mode, |r| r.norm_rope_store(a, inputs, rope, x, gains, 1e-5, q, kv)), heads)
            }
            What::Units => {
                let [gate, up, y] = [f; 3].map(|cols| token(&mut m, cols));
                (Program::record(&m, mode, |r| r.swiglu(gate, up, y)), format!(" [{f}]"))
            }
        };
        let kernel = self.what.kernel();
        let dispatches = program.dispatches.into_iter().filter(|d| d.kernel.name == kernel).collect();
        let tiles: Vec<_> = (0..t).step_by(AttentionDims::TILE).collect();
        let tile = |first: &usize| [0, pages, *first, (t - first).min(AttentionDims::TILE)].map(|n| n as u32);
        // A prime: every page once, none beside the one before.
        let page = |i: usize| if shuffled { i * 7919 % pages } else { i };
        let step = Step {
            n_tokens: t as u32,
            n_sequences: 1,
            n_tiles: tiles.len() as u32,
            max_pages: pages as u32,
            ..Step::default()
        };
        Case {
            name: format!("{kernel}{of} T={t}"),
            memory: m,
            program: Program { dispatches },
            step,
            inputs: [
                (inputs.tokens, (depth..depth + t).flat_map(|p| [0, p as u32, p as u32, 0]).collect()),
                (inputs.sequences, vec![0, pages as u32, 0, t as u32]),
                (inputs.tiles, tiles.iter().flat_map(tile).collect()),
                (inputs.pages, (0..pages).flat_map(|i| [page(i), i * PAGE].map(|n| n as u32)).collect()),
            ]
            .into_iter()
            .chain(far)
            .collect(),
        }
    }
}

/// Trees of `rows` rows in all, and the pages they are in: after those of kept queries, one tree after the other.
fn inputs_of_rows(rows: usize, cover: Cover, tensors: FarInputs) -> Vec<(Tensor, Vec<u32>)> {
    let sizes: Vec<_> = (0..rows).step_by(TREE).map(|first| TREE.min(rows - first)).collect();
    let start = (0..).map(|i| Cover::LEAF << i).find(|size| rows / size <= 2 * WIDTH as usize || *size == TREE);
    let mut far = vec![[1, sizes.len(), start.unwrap_or(TREE), 0]];
    let mut at = cover.heads + Cover::kept_pages(cover.group);
    for size in sizes {
        far.push([size, at, at + size / PAGE, 0]);
        at += size / PAGE + 2 * size / Cover::LEAF / PAGE;
    }
    let lists = (0..cover.heads).map(|_| WIDTH).chain(0..(at - cover.heads) as u32).collect();
    vec![(tensors.far, far.as_flattened().iter().map(|n| *n as u32).collect()), (tensors.lists, lists)]
}

fn weight(m: &mut Memory, format: &'static Format, n: usize, k: usize) -> Weight {
    m.weight("w", rows(format, n, k))
}

/// Rows that are taken two by two.
fn pairs(m: &mut Memory, format: &'static Format, n: usize, k: usize) -> Weight {
    let pairs: Vec<_> = (0..n / 2).map(|i| [2 * i, 2 * i + 1]).collect();
    m.pairs("w", vec![rows(format, n, k)], &pairs)
}

/// `n` times the same row: encoding takes longer than the kernels.
fn rows(format: &'static Format, n: usize, k: usize) -> WeightRows {
    let encode = format.encode.expect("a timed format has an encoder");
    let weights: Vec<f32> = (0..k).map(|i| scattered(i) / (k as f32).sqrt()).collect();
    let mut row = vec![0; k / format.block_len * format.block_bytes];
    encode(&weights, &mut row);
    WeightRows::new(format, n, k, Bytes::new(row.repeat(n)))
}
