//! The one table of cases: tests, benchmarks and the shader checks go through it. No two dims of a case are equal (but
//! H and G where their ratio is 1), and tails are no multiples of a tile.

#[path = "cases/aoc.rs"]
pub mod aoc;

use std::collections::HashMap;

use farpast::format::{ALL, F16, F32, Format, IQ4_NL, Q4_1, Q6_K, Q8_0, SLAB};
use farpast::kernel::{Count, Step};
use farpast::kernels::Pairs::{Halves, Neighbours};
use farpast::kernels::{
    AttentionDims, AttentionInputs, Gate, LOGPROBS_ROW, Norm, PENDING, Pairs, PenaltyInputs, PenaltyTensors, Rope,
    SAMPLED, Scores,
};
use farpast::memory::{
    Bytes, Capacity, Element, Host, Maths, Matrices, MatrixShape, Memory, Tensor, TensorDesc, Tile, Weight, WeightRows,
    stride,
};
use farpast::program::{Mode, Program, Recorder};
use farpast::sampler::{Dry, Penalties, Sampling, TokenSet};
use half::f16;

use crate::gguf_writer::encode;
use aoc::Aoc;

/// One kernel, or decode attention with its merge, and the shapes it is recorded for.
#[derive(Clone, Copy, Debug)]
pub enum Case {
    /// A table `[v, c]` in `parts` bindings, `t` tokens.
    Embed { format: &'static Format, v: usize, c: usize, t: usize, parts: usize },
    /// `t` rows of `c`; of outputs or of tokens.
    Rmsnorm { c: usize, heads: usize, t: usize, outputs: bool, scale: f32, tile: Tile },
    /// Weights `[n, k]` in `parts` bindings and, one step after the other, each number of rows of `t`.
    Linear {
        mode: Mode,
        tile: Tile,
        format: &'static Format,
        n: usize,
        k: usize,
        t: &'static [usize],
        add: bool,
        outputs: bool,
        parts: usize,
        values: Values,
    },
    /// Pairs of `f` rows of gate and up, in `parts` bindings.
    LinearGlu {
        mode: Mode,
        tile: Tile,
        format: &'static Format,
        f: usize,
        k: usize,
        t: &'static [usize],
        gate: Gate,
        parts: usize,
    },
    /// Weights `[n, k]` of two formats, one after the other.
    LinearNorm { mode: Mode, tile: Tile, formats: [&'static Format; 2], n: [usize; 2], k: usize, t: &'static [usize] },
    /// A ragged batch; `split`: v is a weight of its own.
    LinearRope {
        mode: Mode,
        tile: Tile,
        format: &'static Format,
        dims: AttentionDims,
        turning: usize,
        k: usize,
        kv: Element,
        sequences: &'static [Sequence],
        biases: bool,
        split: bool,
    },
    /// A ragged batch; `turning` dims of a head turn.
    NormRopeStore {
        dims: AttentionDims,
        turning: usize,
        pairs: Pairs,
        kv: Element,
        sequences: &'static [Sequence],
        scale: f32,
    },
    /// A ragged batch.
    KvStore { dims: AttentionDims, kv: Element, sequences: &'static [Sequence], scale: f32 },
    /// A ragged batch.
    Attention {
        mode: Mode,
        tile: Tile,
        dims: AttentionDims,
        kv: Element,
        sequences: &'static [Sequence],
        values: Values,
        /// Positions that a query sees; 0: all before.
        window: usize,
        /// Soft-cap of scores; 0: none.
        cap: f32,
    },
    /// Trees of anchored attention.
    Aoc(Aoc),
    /// `t` rows of `c`.
    Bias { c: usize, t: usize },
    /// `t` rows of `f`.
    Geglu { f: usize, t: usize, scale: f32 },
    /// `r` rows of `v` logits.
    Softcap { v: usize, r: usize, cap: f32, scale: f32 },
    /// `t` rows of `f`.
    Swiglu { f: usize, t: usize, scale: f32 },
    /// `r` of `t` rows of `c`.
    OutputNorm { c: usize, t: usize, r: usize, tile: Tile },
    /// `r` rows of `v` logits.
    Sample { v: usize, r: usize },
    /// `b` rows of `v` logits, after histories of up to `n` tokens.
    Penalize { v: usize, b: usize, n: usize },
    /// `r` rows of `v` logits.
    Logprobs { v: usize, r: usize },
}

/// What inputs look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Values {
    /// Signed, around 1.
    Unit,
    /// Signed, up to 1e5: sums cancel.
    Large,
    /// From 0 to 1e5: nothing cancels.
    LargePositive,
    /// Attention whose scores reach 1e10: one key has all the weight.
    Peaked,
}

/// A sequence of a ragged batch: positions before this step, positions of this step, and which of its pages are listed.
#[derive(Clone, Copy, Debug)]
pub struct Sequence(pub usize, pub usize, pub Listed);

/// Pages listed for a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Listed {
    /// All, in order.
    All,
    /// Those from this on.
    From(usize),
    /// All, last first.
    Reversed,
    /// Only pages that start behind every position of this step.
    Unseen,
    /// None.
    Nothing,
}

use Listed::{All, From, Nothing, Reversed, Unseen};

/// Element bits that stand where nothing may be written, and where nothing may be read: a NaN.
pub const CANARY_F32: u32 = 0x7fc0_c0de;
pub const CANARY_F16: u16 = 0x7e5a;
pub const CANARY_U32: u32 = 0xcafe_babe;

/// The bound on f32: error ≤ TOLERANCE · (1 + |b|), b the reference's element, or the sum of magnitudes where it cancels.
pub const TOLERANCE: f64 = 1e-5;

/// The largest magnitude that inputs are tested with.
const LARGE: f32 = 1e5;

/// A case, recorded, with the values of all its tensors.
pub struct Setup {
    pub name: String,
    pub memory: Memory,
    pub program: Program,
    /// Run one after the other from the same values.
    pub steps: Vec<Step>,
    /// Of tensors that are not known at load; the rest is canaries.
    pub values: HashMap<Tensor, Host>,
    /// For sums that cancel: the sum of magnitudes that each element's error is relative to.
    pub magnitudes: HashMap<Tensor, Vec<f64>>,
    /// Bound on the error of f32, relative to 1 and the element or its magnitude.
    pub tolerance: f64,
}

const fn dims(heads: usize, kv_heads: usize, head_dim: usize) -> AttentionDims {
    AttentionDims { heads, kv_heads, head_dim }
}

const TILES: &[usize] = &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17];

/// Every case of a kernel.
pub fn of(kernel: &str) -> Vec<Case> {
    match kernel {
        "embed" => embed(),
        "rmsnorm" => rmsnorm(),
        "linear" => [linear(Mode::Decode), linear(Mode::Prefill)].concat(),
        "linear_norm" => [linear_norm(Mode::Decode), linear_norm(Mode::Prefill)].concat(),
        "linear_glu" => [linear_glu(Mode::Decode), linear_glu(Mode::Prefill)].concat(),
        "linear_rope" => [linear_rope(Mode::Decode), linear_rope(Mode::Prefill)].concat(),
        "norm_rope_store" => norm_rope_store(),
        "kv_store" => kv_store(),
        "attention_prefill" => attention_prefill(),
        "attention_decode" | "attention_merge" => attention_decode(),
        "aoc_points" => aoc::points().into_iter().map(Case::Aoc).collect(),
        "aoc_direction" | "aoc_keys" | "aoc_refine" => aoc::split().into_iter().map(Case::Aoc).collect(),
        "aoc_runs" | "aoc_order" => aoc::order().into_iter().map(Case::Aoc).collect(),
        "aoc_gate" => aoc::gate().into_iter().map(Case::Aoc).collect(),
        "aoc_recall" => aoc::recall().into_iter().map(Case::Aoc).collect(),
        "aoc_rank" => aoc::rank().into_iter().map(Case::Aoc).collect(),
        "aoc_gather" => aoc::gather().into_iter().map(Case::Aoc).collect(),
        "aoc_nodes" => aoc::nodes().into_iter().map(Case::Aoc).collect(),
        "aoc_lookup" => aoc::lookup().into_iter().map(Case::Aoc).collect(),
        "bias" => vec![Case::Bias { c: 1, t: 3 }, Case::Bias { c: 1537, t: 5 }, Case::Bias { c: 94, t: 17 }],
        "geglu" => vec![
            Case::Geglu { f: 1, t: 3, scale: 4.0 },
            Case::Geglu { f: 1537, t: 5, scale: 12.0 },
            Case::Geglu { f: 94, t: 17, scale: LARGE },
        ],
        "softcap" => vec![
            Case::Softcap { v: 1, r: 3, cap: 30.0, scale: 40.0 },
            Case::Softcap { v: 1537, r: 5, cap: 5.0, scale: 12.0 },
            Case::Softcap { v: 94, r: 17, cap: 0.5, scale: LARGE },
        ],
        "swiglu" => vec![
            Case::Swiglu { f: 1, t: 3, scale: 4.0 },
            Case::Swiglu { f: 1537, t: 5, scale: 4.0 },
            Case::Swiglu { f: 94, t: 17, scale: LARGE },
        ],
        "output_norm" => vec![
            Case::OutputNorm { c: 577, t: 19, r: 5, tile: Tile::SOFTWARE },
            Case::OutputNorm { c: 3, t: 4, r: 1, tile: Tile::SUBGROUPS },
            Case::OutputNorm { c: 36, t: 7, r: 6, tile: Tile::SUBGROUPS },
            Case::OutputNorm { c: 1538, t: 9, r: 8, tile: Tile::SUBGROUPS },
        ],
        "sample" => vec![
            Case::Sample { v: 1009, r: 41 },
            Case::Sample { v: 1, r: 3 },
            Case::Sample { v: 63, r: 37 },
            Case::Sample { v: 49152, r: 2 },
        ],
        "penalize" => vec![
            Case::Penalize { v: 1009, b: 12, n: 150 },
            Case::Penalize { v: 7, b: 36, n: 90 },
            Case::Penalize { v: 1, b: 3, n: 5 },
            Case::Penalize { v: 49152, b: 2, n: 3000 },
        ],
        "logprobs" => vec![
            Case::Logprobs { v: 1009, r: 23 },
            Case::Logprobs { v: 1, r: 3 },
            Case::Logprobs { v: 17, r: 22 },
            Case::Logprobs { v: 49152, r: 2 },
        ],
        other => panic!("{other} has no cases"),
    }
}

/// Every case, each once.
pub fn all() -> Vec<Case> {
    // What is recorded together has the same cases.
    const OTHERS: &[&str] = &["attention_merge", "aoc_direction", "aoc_keys", "aoc_refine", "aoc_runs"];
    let kernels = farpast::kernels::ALL.iter().map(|k| k.name).filter(|name| !OTHERS.contains(name));
    kernels.flat_map(of).collect()
}

fn embed() -> Vec<Case> {
    vec![
        Case::Embed { format: &F32, v: 71, c: 33, t: 17, parts: 1 },
        Case::Embed { format: &F32, v: 71, c: 1, t: 5, parts: 3 },
        Case::Embed { format: &F16, v: 130, c: 31, t: 9, parts: 4 },
        Case::Embed { format: &F16, v: 70, c: 2081, t: 3, parts: 1 },
        Case::Embed { format: &Q8_0, v: 67, c: 96, t: 16, parts: 3 },
        Case::Embed { format: &Q8_0, v: 1009, c: 32, t: 11, parts: 1 },
        Case::Embed { format: &Q4_1, v: 67, c: 576, t: 7, parts: 2 },
        Case::Embed { format: &Q4_1, v: 70001, c: 32, t: 13, parts: 1 },
    ]
}

fn rmsnorm() -> Vec<Case> {
    let of = |tile| {
        let cs = [1, 2, 3, 31, 33, 100, 577, 1537, 4097].into_iter();
        let case = move |c, heads, t, outputs, scale| Case::Rmsnorm { c, heads, t, outputs, scale, tile };
        cs.map(move |c| case(c, 1, 5, c % 3 == 0, 3.0)).chain([
            case(579, 1, 17, false, LARGE),
            case(64, 3, 6, false, 3.0),
            case(62, 1, 7, true, 1e-5),
        ])
    };
    [Tile::SOFTWARE, Tile::SUBGROUPS].into_iter().flat_map(of).collect()
}

/// How linears are recorded for one device or another.
pub const TILES_OF_LINEARS: [Tile; 3] = [Tile::SOFTWARE, Tile::HARDWARE, Tile::SUBGROUPS];

/// By cooperative matrices every format, and tails of rows, of tokens and of k.
fn linear_coopmat() -> Vec<Case> {
    let case = |i: usize, tile, format, n, k, t| {
        let (mode, add, parts, values) = (Mode::Prefill, i % 3 == 1, 1 + i % 2, Values::Unit);
        Case::Linear { mode, tile, format, n, k, t, add, outputs: false, parts, values }
    };
    let formats = ALL.iter().enumerate().map(|(i, format)| {
        let k = match format.block_len {
            1 => [165, 1, 64][i % 3],
            32 => [160, 32][i % 2],
            _ => 512,
        };
        case(i, COOPMAT_F32, format, 35 + 13 * i, k, [&[1, 33][..], &[16], &[7, 65]][i % 3])
    });
    // lavapipe takes seconds to compile each of f16.
    let shapes = [
        case(0, COOPMAT_F16, &F16, 130, 165, &[1, 33]),
        case(1, COOPMAT_F16, &Q4_1, 67, 160, &[7, 65]),
        case(2, COOPMAT_16, &Q6_K, 71, 512, &[33]),
        case(4, COOPMAT_WIDE, &Q8_0, 35, 96, &[40]),
    ];
    formats.chain(shapes).collect()
}

/// Linears by cooperative matrices of each shape, and of subgroups of 64.
const COOPMAT_16: Tile = coopmat(MatrixShape::F16x16, 32);
const COOPMAT_F16: Tile = coopmat(MatrixShape::F16x8, 8);
const COOPMAT_F32: Tile = coopmat(MatrixShape::F32x8, 32);
const COOPMAT_WIDE: Tile = coopmat(MatrixShape::F16x16, 64);

const fn coopmat(shape: MatrixShape, subgroup: usize) -> Tile {
    Tile { maths: Maths::Coopmat, matrices: Matrices { shape, subgroup }, ..Tile::HARDWARE }
}

fn linear(mode: Mode) -> Vec<Case> {
    let mut cases = Vec::new();
    // Each format in either tile, and each shape in one or the other.
    let tiles = TILES_OF_LINEARS;
    let swept = [&F32, &F16, &Q8_0, &Q4_1];
    for (i, format) in swept.into_iter().enumerate() {
        let tile = tiles[0];
        let from = cases.len();
        let case = |n, k, t| {
            let values = Values::Unit;
            Case::Linear { mode, tile, format, n, k, t, add: false, outputs: false, parts: 1, values }
        };
        let blocks = format.block_len > 1;
        let sweep: &[(usize, usize, &[usize])] = match blocks {
            false => &[
                (67, 100, TILES),
                (13, 1, &[2]),
                (7, 31, &[5]),
                (131, 33, &[1, 3]),
                (66, 576, &[9]),
                (65, 1537, &[1, 7]),
                (70, 4097, &[17]),
            ],
            true => &[
                (67, 96, TILES),
                (7, 32, &[5]),
                (130, 64, &[1, 3]),
                (66, 576, &[9]),
                (65, 1568, &[1, 7]),
                (70, 4128, &[17]),
            ],
        };
        // A driver compiles each shape anew: every format has the ends of the sweep, one of either kind has all of it.
        let (whole, ends) = (i % 2 == 0, [0, 2, 5, 6]);
        let chosen = sweep.iter().enumerate().filter(|(j, _)| whole || ends.contains(j));
        cases.extend(chosen.map(|(_, (n, k, t))| case(*n, *k, *t)));
        let k = if blocks { 160 } else { 165 };
        let t: &[usize] = &[1, 4, 11];
        let edge =
            |n, add, outputs, parts, values| Case::Linear { mode, tile, format, n, k, t, add, outputs, parts, values };
        let edges = [
            edge(68, true, false, 1, Values::Unit),
            edge(92, false, true, 3, Values::Unit),
            edge(43, true, false, 2, Values::Large),
            edge(97, false, false, 1, Values::Large),
            edge(82, true, true, 1, Values::LargePositive),
        ];
        cases.extend(edges.into_iter().enumerate().filter(|(j, _)| whole || j % 2 == 1).map(|(_, case)| case));
        for (j, case) in cases[from..].iter_mut().enumerate() {
            let Case::Linear { tile, .. } = case else { unreachable!() };
            *tile = tiles[(i / 2 + j) % 3];
        }
    }
    // The other formats only differ in what reads a group.
    for (i, format) in ALL.iter().copied().filter(|f| !swept.contains(f)).enumerate() {
        let (n, k) = (33 + i, [165, 160, 768][[1, 32, 256].iter().position(|len| *len == format.block_len).unwrap()]);
        let (tile, add, parts, values) = (tiles[i % 3], i % 3 == 1, 1 + i % 2, Values::Unit);
        cases.push(Case::Linear { mode, tile, format, n, k, t: &[1, 6], add, outputs: false, parts, values });
    }
    // Every format that int8 holds, and two more in f16.
    let tiered = ALL.iter().filter(|f| f.packed).map(|f| (*f, Maths::Dot8));
    let tiered = tiered.chain([(&IQ4_NL, Maths::Dot8), (&F16, Maths::F16), (&Q4_1, Maths::F16), (&Q6_K, Maths::F16)]);
    for (i, (format, maths)) in tiered.enumerate() {
        let (n, k) = (35 + i, if format.block_len == 256 { 768 } else { 160 });
        for tile in [tiles[i % 2], Tile::SUBGROUPS] {
            let (tile, add, values) = (Tile { maths, ..tile }, i % 3 == 1, Values::Unit);
            cases.push(Case::Linear { mode, tile, format, n, k, t: &[1, 6], add, outputs: false, parts: 1, values });
        }
    }
    if mode == Mode::Prefill {
        cases.extend(linear_coopmat());
    }
    // More outputs than an axis of a dispatch may have workgroups.
    for (format, n, k) in [(&F16, 65_601, 3), (&Q8_0, 65_600, 32)] {
        let values = Values::Unit;
        let tile = tiles[usize::from(k == 3)];
        cases.push(Case::Linear { mode, tile, format, n, k, t: &[2], add: false, outputs: true, parts: 1, values });
    }
    cases
}

fn linear_norm(mode: Mode) -> Vec<Case> {
    let t: &[usize] = &[1, 4, 11];
    let [software, hardware, broadcast] = TILES_OF_LINEARS;
    let case = |tile, formats, n, k| Case::LinearNorm { mode, tile, formats, n, k, t };
    let mut cases = vec![
        case(software, [&Q4_1, &Q8_0], [67, 40], 96),
        case(hardware, [&F16, &F32], [131, 7], 101),
        case(broadcast, [&Q8_0, &F16], [77, 130], 160),
        case(Tile { maths: Maths::Dot8, ..broadcast }, [&Q4_1, &F16], [46, 35], 192),
        case(Tile { maths: Maths::F16, ..hardware }, [&Q8_0, &Q4_1], [33, 70], 64),
    ];
    if mode == Mode::Prefill {
        cases.push(case(COOPMAT_F32, [&Q8_0, &Q4_1], [33, 70], 64));
        cases.push(case(COOPMAT_F16, [&Q4_1, &F16], [67, 40], 96));
    }
    cases
}

fn linear_glu(mode: Mode) -> Vec<Case> {
    let t: &[usize] = &[1, 4, 11];
    let [software, hardware, broadcast] = TILES_OF_LINEARS;
    let case = |tile, format, f, k, gate, parts| Case::LinearGlu { mode, tile, format, f, k, t, gate, parts };
    let mut cases = vec![
        case(software, &Q4_1, 67, 96, Gate::Silu, 1),
        case(software, &F32, 83, 165, Gate::Gelu, 1),
        case(hardware, &F16, 131, 100, Gate::Silu, 1),
        case(hardware, &Q8_0, 190, 160, Gate::Gelu, 2),
        case(broadcast, &Q4_1, 77, 576, Gate::Silu, 2),
        case(broadcast, &F16, 50, 101, Gate::Gelu, 3),
        case(broadcast, &Q8_0, 1, 32, Gate::Silu, 1),
    ];
    if mode == Mode::Prefill {
        cases.push(case(COOPMAT_F32, &Q4_1, 67, 96, Gate::Silu, 2));
        cases.push(case(COOPMAT_WIDE, &F16, 83, 101, Gate::Gelu, 1));
    }
    cases
}

fn linear_rope(mode: Mode) -> Vec<Case> {
    const ONE_EACH: &[Sequence] = &[Sequence(15, 1, All), Sequence(0, 1, All), Sequence(32, 1, All)];
    const RAGGED: &[Sequence] = &[Sequence(15, 3, All), Sequence(0, 1, All), Sequence(30, 17, All)];
    let sequences = if mode == Mode::Decode { ONE_EACH } else { RAGGED };
    let [software, hardware, broadcast] = TILES_OF_LINEARS;
    let case = |tile, format, dims: AttentionDims, k, kv, biases, split| Case::LinearRope {
        mode,
        tile,
        format,
        dims,
        // All but 8 dims of a head turn where there are biases.
        turning: dims.head_dim - if biases { 8 } else { 0 },
        k,
        kv,
        sequences,
        biases,
        split,
    };
    let mut cases = vec![
        case(software, &Q4_1, dims(6, 2, 8), 96, Element::F16, false, false),
        case(software, &F32, dims(5, 5, 24), 165, Element::F32, true, true),
        case(hardware, &F16, dims(9, 3, 64), 102, Element::F16, true, false),
        case(hardware, &Q8_0, dims(6, 2, 80), 160, Element::F32, false, true),
        case(broadcast, &Q4_1, dims(14, 2, 40), 576, Element::F16, true, false),
        case(broadcast, &Q8_0, dims(4, 1, 24), 64, Element::F32, true, true),
        case(software, &Q4_1, dims(6, 3, 16), 96, Element::Q8_0, true, true),
        case(hardware, &F16, dims(5, 1, 40), 102, Element::Q4_0, false, false),
    ];
    if mode == Mode::Prefill {
        cases.push(case(COOPMAT_F32, &F16, dims(5, 5, 24), 165, Element::F32, true, true));
        cases.push(case(COOPMAT_F16, &Q4_1, dims(9, 3, 16), 96, Element::F16, true, false));
    }
    cases
}

fn norm_rope_store() -> Vec<Case> {
    let sequences: &[Sequence] = &[Sequence(15, 3, All), Sequence(0, 1, All), Sequence(32, 17, All)];
    let part = |dims, turning, pairs, kv| Case::NormRopeStore { dims, turning, pairs, kv, sequences, scale: 2.0 };
    let case = |dims: AttentionDims, pairs, kv, scale| Case::NormRopeStore {
        dims,
        turning: dims.head_dim,
        pairs,
        kv,
        sequences,
        scale,
    };
    vec![
        case(dims(9, 3, 64), Neighbours, Element::F16, 2.0),
        case(dims(9, 3, 64), Halves, Element::F32, 2.0),
        case(dims(14, 2, 128), Halves, Element::F32, LARGE),
        case(dims(5, 5, 80), Neighbours, Element::F16, LARGE),
        case(dims(3, 1, 24), Halves, Element::F16, 1e-4),
        case(dims(8, 2, 96), Neighbours, Element::F16, 1.0),
        case(dims(6, 2, 8), Halves, Element::F32, 1.0),
        part(dims(4, 2, 32), 24, Halves, Element::F32),
        part(dims(10, 5, 40), 16, Neighbours, Element::F16),
        part(dims(6, 3, 16), 0, Halves, Element::F32),
        part(dims(8, 2, 80), 72, Neighbours, Element::Q8_0),
    ]
}

fn kv_store() -> Vec<Case> {
    let sequences: &[Sequence] = &[Sequence(15, 3, All), Sequence(0, 1, All), Sequence(32, 17, All)];
    let case = |dims, kv, scale| Case::KvStore { dims, kv, sequences, scale };
    vec![
        case(dims(9, 3, 64), Element::Q8_0, 2.0),
        case(dims(9, 3, 64), Element::Q4_0, 2.0),
        case(dims(5, 5, 80), Element::Q8_0, LARGE),
        case(dims(5, 5, 80), Element::Q4_0, LARGE),
        case(dims(6, 2, 8), Element::Q4_0, 1e-2),
        case(dims(6, 2, 12), Element::Q8_0, 1e-2),
        case(dims(8, 2, 96), Element::Q4_0, 1.0),
        case(dims(4, 1, 256), Element::Q8_0, 1.0),
    ]
}

/// Lengths around page boundaries, longer than 64 pages, and lists that are not simply all pages in order.
const PREFILL: &[Sequence] = &[
    Sequence(0, 15, All),
    Sequence(0, 16, All),
    Sequence(3, 14, All),
    Sequence(31, 1, All),
    Sequence(32, 1, Reversed),
    Sequence(40, 23, From(1)),
    Sequence(5, 2, Unseen),
    Sequence(4, 3, Nothing),
];
const LONG_PREFILL: &[Sequence] = &[Sequence(0, 2, All), Sequence(1039, 9, All)];
const DECODE: &[Sequence] = &[
    Sequence(0, 1, All),
    Sequence(14, 1, All),
    Sequence(15, 1, Reversed),
    Sequence(16, 1, All),
    Sequence(30, 1, All),
    Sequence(95, 1, From(2)),
    Sequence(7, 1, Unseen),
    Sequence(9, 1, Nothing),
    Sequence(1040, 1, All),
];
/// Hundreds of pages.
const LONG_DECODE: &[Sequence] = &[Sequence(16 * 521 - 1, 1, All), Sequence(33, 1, All)];

fn attention(mode: Mode, sequences: &'static [Sequence], long: Case, windows: [usize; 3]) -> Vec<Case> {
    let tile = Tile::SOFTWARE;
    let case = |dims, kv, values| Case::Attention { mode, tile, dims, kv, sequences, values, window: 0, cap: 0.0 };
    let windowed = windows.map(|window| {
        let (dims, kv, values) = (dims(6, 2, 8), Element::F32, Values::Unit);
        Case::Attention { mode, tile, dims, kv, sequences, values, window, cap: 0.0 }
    });
    let capped = [(0.7, Values::Unit), (40.0, Values::Unit), (3.0, Values::Peaked)].map(|(cap, values)| {
        let (dims, kv) = (dims(4, 2, 16), Element::F32);
        Case::Attention { mode, tile, dims, kv, sequences, values, window: 0, cap }
    });
    let others = [
        case(dims(6, 2, 8), Element::F32, Values::Unit),
        long,
        case(dims(3, 1, 20), Element::F32, Values::Large),
        case(dims(3, 1, 20), Element::F32, Values::Peaked),
        case(dims(9, 3, 64), Element::F16, Values::Unit),
        case(dims(5, 5, 80), Element::F32, Values::LargePositive),
        case(dims(8, 2, 96), Element::F16, Values::Unit),
        case(dims(14, 2, 128), Element::F16, Values::Unit),
        case(dims(4, 1, 256), Element::F16, Values::Unit),
        case(dims(9, 3, 64), Element::Q8_0, Values::Unit),
        case(dims(5, 5, 80), Element::Q8_0, Values::LargePositive),
        case(dims(6, 2, 8), Element::Q8_0, Values::Unit),
        case(dims(3, 1, 20), Element::Q4_0, Values::Unit),
        case(dims(8, 2, 96), Element::Q4_0, Values::Unit),
        case(dims(14, 2, 128), Element::Q4_0, Values::Unit),
    ];
    // Each case in two of the three tiles.
    let in_tile = |(i, mut case): (usize, Case), n: usize| {
        let Case::Attention { tile, .. } = &mut case else { unreachable!() };
        *tile = TILES_OF_LINEARS[(i + n) % 3];
        case
    };
    let cases = [&windowed[..], &capped, &others].concat();
    cases.into_iter().enumerate().flat_map(|case| [in_tile(case, 0), in_tile(case, 2)]).collect()
}

fn attention_prefill() -> Vec<Case> {
    let (mode, tile, dims, kv, sequences) = (Mode::Prefill, Tile::SOFTWARE, dims(6, 2, 8), Element::F16, LONG_PREFILL);
    let long = Case::Attention { mode, tile, dims, kv, sequences, values: Values::Unit, window: 0, cap: 0.0 };
    attention(mode, PREFILL, long, [1, 16, 19])
}

fn attention_decode() -> Vec<Case> {
    let (mode, tile, dims, kv, sequences) = (Mode::Decode, Tile::SOFTWARE, dims(2, 1, 12), Element::F16, LONG_DECODE);
    let long = Case::Attention { mode, tile, dims, kv, sequences, values: Values::Unit, window: 0, cap: 0.0 };
    attention(mode, DECODE, long, [1, 16, 37])
}

impl Case {
    /// Records the case and draws its values.
    pub fn setup(self) -> Setup {
        self.setup_with(1)
    }

    /// As [`setup`](Self::setup), with KV pages in another order for each `order`.
    pub fn setup_with(self, order: u64) -> Setup {
        let mut random = Random(7);
        match self {
            Case::Embed { format, v, c, t, parts } => {
                let mut setup = Draft::new(rows(t), format, v, c, parts);
                let table = setup.weight(&mut random, format, v, c, Values::Unit);
                let tokens = setup.memory.input("tokens", Count::Tokens, 4);
                let y = setup.memory.activation("y", Count::Tokens, c);
                // The first and last row of the table and, where it is split, of each part.
                let mut ids: Vec<_> = table.part_edges(parts);
                ids.extend((ids.len()..t).map(|_| random.below(v) as u32));
                // Every third token is what the step before has drawn for some sequence.
                let drawn = setup.memory.input("ids", Count::Outputs, 1);
                let token = |(i, id): (usize, &u32)| {
                    if i % 3 == 2 { [SAMPLED + i as u32 / 3, 0, 0, 1] } else { [*id, 0, 0, 1] }
                };
                setup.input(tokens, ids.iter().take(t).enumerate().flat_map(token).collect());
                setup.input(drawn, ids.iter().take(t).skip(2).step_by(3).copied().collect());
                let name = format!("embed {} [{v}, {c}] in {parts} parts, T = {t}", format.name);
                setup.record(name, Mode::Prefill, vec![tokens_step(t)], |r| r.embed(tokens, drawn, &table.0, y))
            }
            Case::Rmsnorm { c, heads, t, outputs, scale, tile } => {
                let mut setup = Draft::new(rows(t), &F32, 1, heads * c, 1);
                setup.memory.tile = tile;
                let count = if outputs { Count::Outputs } else { Count::Tokens };
                let x = setup.memory.activation("x", count, heads * c);
                let values: Vec<_> = (0..c).map(|_| random.signed(2.0)).collect();
                let w = setup.memory.table("w", c, &values);
                let y = setup.memory.activation("y", count, heads * c);
                setup.rows(x, t, |_, _| random.signed(scale));
                let step = if outputs { outputs_step(t) } else { tokens_step(t) };
                let name =
                    format!("rmsnorm C = {c}, H = {heads}, T = {t}, outputs: {outputs}, |x| ≤ {scale}, {tile:?}");
                setup.record(name, Mode::Prefill, vec![step], |r| r.rmsnorm(x, w, 1e-5, y))
            }
            Case::Linear { mode, tile, format, n, k, t, add, outputs, parts, values } => {
                let most = *t.iter().max().expect("a case has rows");
                let mut setup = Draft::new(rows(most), format, n, k, parts);
                setup.memory.tile = tile;
                let w = setup.weight(&mut random, format, n, k, values);
                let count = if outputs { Count::Outputs } else { Count::Tokens };
                let x = setup.memory.activation("x", count, k);
                let y = setup.memory.activation("y", count, n);
                setup.rows(x, most, |_, _| random.value(values));
                if add {
                    setup.rows(y, most, |_, _| random.value(values));
                }
                if values == Values::Large || tile.maths != Maths::F32 {
                    let sums = w.magnitudes(setup.values[&x].f32(), most, add.then(|| setup.values[&y].f32()));
                    setup.magnitudes.insert(y, sums);
                }
                let steps = t.iter().map(|t| if outputs { outputs_step(*t) } else { tokens_step(*t) }).collect();
                let name = format!(
                    "{mode:?} {} [{n}, {k}] in {parts} parts, {tile:?}, add: {add}, outputs: {outputs}, {values:?}",
                    format.name
                );
                setup.record(name, mode, steps, |r| if add { r.linear_add(x, &w.0, y) } else { r.linear(x, &w.0, y) })
            }
            Case::LinearNorm { mode, tile, formats, n, k, t } => {
                let most = *t.iter().max().expect("a case has rows");
                let mut setup = Draft::new(rows(most), &F32, 1, k, 1);
                setup.memory.tile = tile;
                let weights = [0, 1].map(|i| {
                    let rows = weights(&mut random, formats[i], n[i], k);
                    setup.memory.weight("w", rows)
                });
                let norm = setup.norm(&mut random, k);
                let x = setup.memory.activation("x", Count::Tokens, k);
                let y = setup.memory.activation("y", Count::Tokens, n[0] + n[1]);
                setup.rows(x, most, |_, _| random.signed(3.0));
                let steps = t.iter().map(|t| tokens_step(*t)).collect();
                let name = format!("{mode:?} {} and {} {n:?} of {k}, {tile:?}", formats[0].name, formats[1].name);
                setup.record(name, mode, steps, |r| r.linear_norm(x, norm, &[(&weights, y)]))
            }
            Case::LinearGlu { mode, tile, format, f, k, t, gate, parts } => {
                let most = *t.iter().max().expect("a case has rows");
                let mut setup = Draft::new(rows(most), &F32, 1, f.max(k), 1);
                setup.memory.tile = tile;
                let unit = 2 * SLAB;
                if parts > 1 {
                    setup.memory.capacity.binding = format.gpu_bytes((2 * f).div_ceil(parts).next_multiple_of(unit), k);
                }
                let tensors = vec![weights(&mut random, format, f, k), weights(&mut random, format, f, k)];
                let pairs: Vec<_> = (0..f).map(|i| [i, f + i]).collect();
                let w = setup.memory.pairs("w", tensors, &pairs);
                let norm = setup.norm(&mut random, k);
                let x = setup.memory.activation("x", Count::Tokens, k);
                let y = setup.memory.activation("y", Count::Tokens, f);
                setup.rows(x, most, |_, _| random.signed(3.0));
                let steps = t.iter().map(|t| tokens_step(*t)).collect();
                let name = format!("{mode:?} {gate:?} {} [{f}, {k}] in {parts} parts, {tile:?}", format.name);
                setup.record(name, mode, steps, |r| r.linear_glu(x, norm, &w, gate, y))
            }
            Case::LinearRope { mode, tile, format, dims: d, turning, k, kv, sequences, biases, split } => {
                let batch = Batch::new(sequences, order);
                let mut setup = Draft::with(batch.capacity(kv));
                setup.memory.tile = tile;
                let inputs = setup.attention_inputs(d, &batch);
                let table = random.turns(batch.context * turning / 2);
                let rope =
                    Rope { table: setup.memory.table("rope", turning, &table), dims: turning, pairs: Neighbours };
                let kv_dim = d.kv_heads * d.head_dim;
                let mut projection = |rows| weights(&mut random, format, rows, k);
                let [q, key, value] = [d.heads * d.head_dim, kv_dim, kv_dim].map(&mut projection);
                let of = |range: std::ops::Range<usize>| range.map(|p| [2 * p, 2 * p + 1]).collect::<Vec<_>>();
                let [qk, all] = [1, 2].map(|n| (d.heads + n * d.kv_heads) * d.head_dim / 2);
                let m = &mut setup.memory;
                let w = match split {
                    true => vec![m.pairs("qk", vec![q, key], &of(0..qk)), m.pairs("v", vec![value], &of(0..all - qk))],
                    false => vec![m.pairs("qkv", vec![q, key, value], &of(0..all))],
                };
                let norm = setup.norm(&mut random, k);
                let mut vectors = setup.memory.desc(norm.gain).host().unwrap().f32().to_vec();
                if biases {
                    vectors.extend((0..2 * all).map(|_| random.signed(2.0)));
                } else {
                    vectors.truncate(k);
                }
                let vectors = setup.memory.table("vectors", vectors.len(), &vectors);
                let x = setup.memory.activation("x", Count::Tokens, k);
                let q = setup.memory.activation("q", Count::Tokens, d.heads * d.head_dim);
                setup.rows(x, batch.tokens.len(), |_, _| random.signed(3.0));
                let pages = setup.kv_written(d, &batch);
                if tile.maths != Maths::F32 {
                    // Below the magnitudes of any K products that a sum is of.
                    for t in [q, pages[0], pages[1]] {
                        let desc = setup.memory.desc(t);
                        setup.magnitudes.insert(t, vec![k as f64 / 4.0; desc.rows * stride(desc.cols)]);
                    }
                }
                let name = format!(
                    "{mode:?} {} {d:?} K = {k} {kv:?}, {tile:?}, biases: {biases}, split: {split}",
                    format.name
                );
                setup.record(name, mode, vec![batch.step], |r| {
                    r.linear_rope(d, inputs, x, norm, &w, vectors, rope, q, pages)
                })
            }
            Case::NormRopeStore { dims: d, turning, pairs, kv, sequences, scale } => {
                let batch = Batch::new(sequences, order);
                let mut setup = Draft::with(batch.capacity(kv));
                let inputs = setup.attention_inputs(d, &batch);
                let table = random.turns(batch.context * turning.max(2) / 2);
                let rope = setup.memory.table("rope", turning.max(2), &table);
                let heads = d.heads + 2 * d.kv_heads;
                let x = setup.memory.activation("x", Count::Tokens, heads * d.head_dim);
                setup.rows(x, batch.tokens.len(), |_, _| random.signed(scale));
                let gains: Vec<_> = (0..2 * d.head_dim).map(|_| random.signed(2.0)).collect();
                let gains = setup.memory.table("gains", 2 * d.head_dim, &gains);
                let q = setup.memory.activation("q", Count::Tokens, d.heads * d.head_dim);
                let pages = setup.kv_written(d, &batch);
                let name = format!("norm_rope_store {d:?} of which {turning} turn, {pairs:?} {kv:?} |x| ≤ {scale}");
                setup.record(name, Mode::Prefill, vec![batch.step], |r| {
                    let rope = Rope { table: rope, dims: turning, pairs };
                    r.norm_rope_store(d, inputs, rope, x, gains, 1e-5, q, pages)
                })
            }
            Case::KvStore { dims: d, kv, sequences, scale } => {
                let batch = Batch::new(sequences, order);
                let mut setup = Draft::with(batch.capacity(kv));
                let inputs = setup.attention_inputs(d, &batch);
                let rows = setup.kv_rows(d);
                for (i, t) in rows.into_iter().enumerate() {
                    // Every seventh row is 0; others have blocks of other sizes.
                    let size = |row: usize, col: usize| match (row + i) % 7 {
                        6 => 0.0,
                        _ => scale / (1 + 9 * (col / 32 % 2)) as f32,
                    };
                    setup.rows(t, batch.tokens.len(), |row, col| random.signed(size(row, col)));
                }
                let q = setup.memory.activation("q", Count::Tokens, d.heads * d.head_dim);
                setup.rows(q, batch.tokens.len(), |_, _| random.signed(scale));
                let pages = setup.kv_pages(d, &batch);
                let name = format!("kv_store {d:?} {kv:?} |x| ≤ {scale}");
                let mut setup =
                    setup.record(name, Mode::Prefill, vec![batch.step], |r| r.kv_store(d, inputs, rows, q, pages));
                // Sums of up to 32 dims cancel.
                let most = vec![32.0 * f64::from(scale); setup.memory.desc(q).rows * d.heads * d.head_dim];
                setup.magnitudes.insert(q, most);
                setup
            }
            Case::Attention { mode, tile, dims: d, kv, sequences, values, window, cap } => {
                let batch = Batch::new(sequences, order);
                let mut setup = Draft::with(batch.capacity(kv));
                setup.memory.tile = tile;
                let inputs = setup.attention_inputs(d, &batch);
                let q = setup.memory.activation("q", Count::Tokens, d.heads * d.head_dim);
                let o = setup.memory.activation("o", Count::Tokens, d.heads * d.head_dim);
                let pages = setup.kv_pages(d, &batch);
                let (q_scale, k_scale) = match values {
                    Values::Unit => (2.0, 2.0),
                    Values::Large | Values::LargePositive => (LARGE, 3.0 / LARGE),
                    Values::Peaked => (LARGE, LARGE),
                };
                setup.rows(q, batch.tokens.len(), |_, _| random.signed(q_scale));
                batch.fill(&mut setup, d, pages[0], |_| random.signed(k_scale));
                batch.fill(&mut setup, d, pages[1], |_| random.value(values));
                let name = format!("attention {mode:?} {tile:?} {d:?} {kv:?} {values:?} {sequences:?}");
                let scale = 1.0 / (d.head_dim as f32).sqrt();
                let mut setup = setup.record(name, mode, vec![batch.step], |r| {
                    r.attention(d, inputs, Scores { scale, window, cap }, q, pages, o)
                });
                // A capped peak has not all the weight: large values cancel.
                if values == Values::Large || cap > 0.0 {
                    setup.weigh(pages[1], [inputs.parts, o]);
                }
                setup
            }
            Case::Aoc(case) => case.setup(order),
            Case::Softcap { v, r: wanted, cap, scale } => {
                let mut setup = Draft::new(rows(wanted), &F32, 1, v, 1);
                let x = setup.memory.activation("x", Count::Outputs, v);
                setup.rows(x, wanted, |_, _| random.signed(scale));
                let name = format!("softcap {cap} V = {v}, R = {wanted}, |x| ≤ {scale}");
                setup.record(name, Mode::Prefill, vec![outputs_step(wanted)], |r| r.softcap(x, cap))
            }
            Case::Bias { c, t } => {
                let mut setup = Draft::new(rows(t), &F32, 1, c, 1);
                let values: Vec<_> = (0..c).map(|_| random.signed(2.0)).collect();
                let b = setup.memory.table("b", c, &values);
                let y = setup.memory.activation("y", Count::Tokens, c);
                setup.rows(y, t, |_, _| random.signed(4.0));
                setup.record(format!("bias C = {c}, T = {t}"), Mode::Prefill, vec![tokens_step(t)], |r| r.bias(b, y))
            }
            Case::Geglu { f, t, scale } => {
                let mut setup = Draft::new(rows(t), &F32, 1, f, 1);
                let [gate, up, y] = ["gate", "up", "y"].map(|name| setup.memory.activation(name, Count::Tokens, f));
                for x in [gate, up] {
                    setup.rows(x, t, |_, _| random.signed(scale));
                }
                let name = format!("geglu F = {f}, T = {t}, |x| ≤ {scale}");
                setup.record(name, Mode::Prefill, vec![tokens_step(t)], |r| r.geglu(gate, up, y))
            }
            Case::Swiglu { f, t, scale } => {
                let mut setup = Draft::new(rows(t), &F32, 1, f, 1);
                let [gate, up, y] = ["gate", "up", "y"].map(|name| setup.memory.activation(name, Count::Tokens, f));
                for x in [gate, up] {
                    setup.rows(x, t, |_, _| random.signed(scale));
                }
                let name = format!("swiglu F = {f}, T = {t}, |x| ≤ {scale}");
                setup.record(name, Mode::Prefill, vec![tokens_step(t)], |r| r.swiglu(gate, up, y))
            }
            Case::OutputNorm { c, t, r: wanted, tile } => {
                let mut setup = Draft::new(rows(t), &F32, 1, c, 1);
                setup.memory.tile = tile;
                let x = setup.memory.activation("x", Count::Tokens, c);
                let outputs = setup.memory.input("outputs", Count::Outputs, 1);
                let w = setup.norm(&mut random, c).gain;
                let y = setup.memory.activation("y", Count::Outputs, c);
                setup.rows(x, t, |_, _| random.signed(3.0));
                let mut order: Vec<_> = (0..t as u32).collect();
                random.shuffle(&mut order);
                order.truncate(wanted);
                setup.input(outputs, order);
                let step = Step { n_tokens: t as u32, n_outputs: wanted as u32, ..Step::default() };
                let name = format!("output_norm C = {c}, {wanted} of {t}, {tile:?}");
                setup.record(name, Mode::Prefill, vec![step], |r| r.output_norm(outputs, x, w, 1e-5, y))
            }
            Case::Sample { v, r } => {
                // Every other row has ties.
                let logit = |row: usize, x: f32| if row.is_multiple_of(2) { (x * 2.0).round() / 2.0 } else { x };
                let mut row = |row| (0..v).map(|_| logit(row, random.signed(6.0))).collect::<Vec<_>>();
                let logits: Vec<_> = (0..r).map(&mut row).collect();
                let samplings: Vec<_> = (0..r).map(|i| sampling(i, v, &mut random)).collect();
                sample(&logits, &samplings)
            }
            Case::Penalize { v, b, n } => {
                penalize(&(0..b).map(|i| penalized(i, v, n, &mut random)).collect::<Vec<_>>())
            }
            Case::Logprobs { v, r } => {
                // Few different values in every other row, so that there are ties.
                let logit = |row: usize, x: f32| if row.is_multiple_of(2) { x.round() } else { x };
                let mut row = |row| (0..v).map(|_| logit(row, random.signed(6.0))).collect::<Vec<_>>();
                let mut logits: Vec<_> = (0..r).map(&mut row).collect();
                if v > 1 {
                    logits[0][v - 1] = f32::NAN;
                    logits[r - 1][v - 1] = f32::NEG_INFINITY;
                }
                let wanted = |i: usize| [Some(20), None, Some(0), Some(5)][i % 4];
                logprobs(&logits, &(0..r).map(|i| (random.below(v.max(2) - 1) as u32, wanted(i))).collect::<Vec<_>>())
            }
        }
    }
}

/// Sampling of row `i`: greedy, then every mixture of temperature and what keeps tokens.
fn sampling(i: usize, v: usize, random: &mut Random) -> Sampling {
    let temperature = [0.0, 1.0, 0.7, 0.2, 1.9][i % 5];
    let top_k = [0, 1, 40, 3, v as u32, v as u32 + 1, 7][i % 7];
    let top_p = [1.0, 0.9, 0.5, 0.05][i % 4];
    let typical_p = [1.0, 0.8, 0.3][i % 3];
    let min_p = [0.0, 0.0, 0.05, 0.3][i / 2 % 4];
    Sampling { temperature, top_k, top_p, typical_p, min_p, seed: random.next(), ..Sampling::default() }
}

/// A row of logits and what is asked of it: history, and tokens drawn since that the host does not know.
pub struct Penalized {
    pub logits: Vec<f32>,
    pub sampling: Sampling,
    pub history: Vec<u32>,
    pub pending: Vec<u32>,
    pub allowed: Option<TokenSet>,
}

/// The `i`-th of many.
fn penalized(i: usize, v: usize, n: usize, random: &mut Random) -> Penalized {
    // Tokens of a small part of the vocabulary repeat one another.
    let part = [v, 5.min(v), 2.min(v), 40.min(v)][i % 4];
    let spread = v / part;
    let mut tokens = |n: usize| (0..n).map(|_| (random.below(part) * spread) as u32).collect::<Vec<_>>();
    let (history, pending) = (tokens([n, n / 3, 2, 0][i / 4 % 4]), tokens(i % 5 % 4));
    let penalties = Penalties {
        last_n: [0, 64, usize::MAX, 2][i / 3 % 4],
        repeat: [1.0, 1.3, 0.8][i % 3],
        frequency: [0.0, 0.25, -0.5][i / 2 % 3],
        presence: [0.5, 0.0][i % 2],
    };
    let some = |each: usize, random: &mut Random| -> TokenSet {
        // One of those that repeat, and others.
        let last = (part - 1) * spread;
        (0..v).filter(|id| random.below(each) == 0 || *id == last).map(|id| id as u32).collect()
    };
    let dry = Dry {
        multiplier: [0.8, 0.0, 0.3][i / 4 % 3],
        base: [1.75, 1.0, 2.5][i % 3],
        allowed_length: [2, 0, 1, 5][i % 4],
        last_n: [usize::MAX, usize::MAX, 33, 1][i / 2 % 4],
        breakers: if i.is_multiple_of(2) { some(3, random) } else { TokenSet::default() },
    };
    let logit_bias = (0..[0, 3, 9][i % 3]).map(|_| (random.below(v) as u32, random.signed(4.0))).collect();
    let allowed = (i % 3 == 1).then(|| some(2, random));
    let logits = (0..v).map(|_| random.signed(6.0)).collect();
    Penalized {
        logits,
        sampling: Sampling { penalties, dry, logit_bias, ..Sampling::default() },
        history,
        pending,
        allowed,
    }
}

/// Each row as it is before a token is drawn from it, in the rows behind those of the outputs.
pub fn penalize(all: &[Penalized]) -> Setup {
    let (b, v) = (all.len(), all[0].logits.len());
    let context = all.iter().map(|p| p.history.len()).max().unwrap_or(0);
    let capacity = Capacity { outputs: b + 3, sequences: b + 2, tokens: b + 5, context, ..CAPACITY };
    let mut setup = Draft::with(capacity);
    let logits = setup.memory.activation_and("logits", Count::Outputs, capacity.sequences, v);
    let tensors = PenaltyTensors::declare(v, &mut setup.memory);
    let ids = setup.memory.tensor("ids", Element::U32, PENDING * capacity.outputs, 1);
    setup.rows(logits, b, |row, i| all[row].logits[i]);
    let (mut inputs, mut drawn) = (PenaltyInputs::default(), vec![CANARY_U32; PENDING * capacity.outputs]);
    for (i, p) in all.iter().enumerate() {
        let at: Vec<_> = (0..p.pending.len()).map(|k| (k * capacity.outputs + i) as u32).collect();
        at.iter().zip(&p.pending).for_each(|(at, id)| drawn[*at as usize] = *id);
        // Rows in another order than the requests.
        let to = capacity.outputs + (i + 1) % b;
        inputs.add([i, to], &p.sampling, &p.history, &at, p.allowed.as_ref());
    }
    setup.input(ids, drawn);
    setup.input(tensors.wants, inputs.wants.as_flattened().to_vec());
    setup.input(tensors.sets, inputs.sets(v));
    setup.input(tensors.lists, inputs.lists);
    let name = format!("penalize V = {v}, B = {b}, up to {context} tokens");
    let step = Step { n_penalized: b as u32, ..outputs_step(b + 1) };
    setup.record(name, Mode::Prefill, vec![step], |r| r.penalize(logits, tensors, ids))
}

/// What logprobs are made of: each row's token and how many alternatives are wanted.
pub fn logprobs(rows: &[Vec<f32>], wanted: &[(u32, Option<usize>)]) -> Setup {
    let (r, v) = (rows.len(), rows[0].len());
    let mut setup = Draft::with(Capacity { outputs: r + 3, tokens: r + 5, ..CAPACITY });
    let logits = setup.memory.activation("logits", Count::Outputs, v);
    let sampling = setup.memory.input("sampling", Count::Outputs, 8);
    let ids = setup.memory.tensor("ids", Element::U32, 2 * r + 3, 1);
    let logprobs = setup.memory.activation("logprobs", Count::Logprobs, LOGPROBS_ROW);
    setup.rows(logits, r, |row, i| rows[row][i]);
    let draw = Sampling::default().draw(0);
    setup.input(sampling, wanted.iter().flat_map(|(_, n)| draw.to_words(0, *n)).collect());
    setup.input(ids, [vec![CANARY_U32; r], wanted.iter().map(|(id, _)| *id).collect()].concat());
    let name = format!("logprobs V = {v}, R = {r}");
    let step = Step { n_logprobs: r as u32, first_id: r as u32, ..outputs_step(r) };
    setup.record(name, Mode::Prefill, vec![step], |record| record.logprobs(logits, sampling, ids, logprobs))
}

/// A token drawn from each row of logits.
pub fn sample(rows: &[Vec<f32>], samplings: &[Sampling]) -> Setup {
    let (r, v) = (rows.len(), rows[0].len());
    let capacity = Capacity { outputs: r + 3, tokens: r + 5, ..CAPACITY };
    let mut setup = Draft::with(capacity);
    let logits = setup.memory.activation("logits", Count::Outputs, v);
    let sampling = setup.memory.input("sampling", Count::Outputs, 8);
    let ids = setup.memory.tensor("ids", Element::U32, 2 * r + 3, 1);
    // The last output draws from the first row.
    setup.rows(logits, r, |row, i| rows[(row + r - 1) % r][i]);
    let words = samplings.iter().enumerate().flat_map(|(i, s)| s.draw(3).to_words((i + 1) % r, None));
    setup.input(sampling, words.collect());
    let name = format!("sample V = {v}, R = {r}");
    let step = Step { first_id: r as u32, ..outputs_step(r) };
    setup.record(name, Mode::Prefill, vec![step], |r| r.sample(logits, sampling, ids))
}

const PAGE: usize = Capacity::PAGE;

const CAPACITY: Capacity =
    Capacity { tokens: 1, outputs: 1, sequences: 1, context: PAGE, pages: 1, kv: Element::F32, binding: usize::MAX };

/// Capacity beyond what is used, so that rows are left to stand as canaries; tokens and outputs differ.
fn rows(t: usize) -> Capacity {
    Capacity { tokens: t + 5, outputs: t + 3, ..CAPACITY }
}

/// The other count is less, so that a row is missing where it is taken for this one.
fn tokens_step(t: usize) -> Step {
    Step { n_tokens: t as u32, n_outputs: t as u32 - 1, n_sequences: 1, ..Step::default() }
}

fn outputs_step(r: usize) -> Step {
    Step { n_tokens: r as u32 - 1, n_outputs: r as u32, n_sequences: 1, ..Step::default() }
}

/// Host values of `desc` that are all canaries.
pub fn canaries(desc: &TensorDesc) -> Host {
    match desc.element {
        Element::F32 => Host::F32(vec![f32::from_bits(CANARY_F32); desc.rows * stride(desc.cols)]),
        Element::F16 => Host::F16(vec![f16::from_bits(CANARY_F16); desc.rows * stride(desc.cols)]),
        Element::U32 => Host::U32(vec![CANARY_U32; desc.rows * desc.cols]),
        // NaN as a scale.
        Element::Q8_0 | Element::Q4_0 => desc.host_of(&CANARY_F16.to_le_bytes().repeat(desc.bytes() / 2)),
        Element::Weight(_) => unreachable!("weight {} has no values", desc.name),
    }
}

/// A setup before it is recorded.
struct Draft {
    memory: Memory,
    values: HashMap<Tensor, Host>,
    magnitudes: HashMap<Tensor, Vec<f64>>,
}

/// Weights whose products with inputs around 1 are around 1.
fn weights(random: &mut Random, format: &'static Format, n: usize, k: usize) -> WeightRows {
    let weights: Vec<f32> = (0..n * k).map(|_| random.signed((k as f32).sqrt().recip())).collect();
    WeightRows::new(format, n, k, Bytes::new(encode(format, &weights)))
}

/// Weights as memory and as the checkpoint have them.
struct Declared(Weight, WeightRows);

impl Draft {
    fn with(capacity: Capacity) -> Self {
        Self { memory: Memory::new(capacity), values: HashMap::new(), magnitudes: HashMap::new() }
    }

    /// With a binding limit that splits weights of `n × k` in `parts`.
    fn new(mut capacity: Capacity, format: &Format, n: usize, k: usize, parts: usize) -> Self {
        if parts > 1 {
            capacity.binding = format.gpu_bytes(n.div_ceil(parts), k);
        }
        Self::with(capacity)
    }

    fn weight(&mut self, random: &mut Random, format: &'static Format, n: usize, k: usize, values: Values) -> Declared {
        let scale = (k as f32).sqrt().recip();
        let weights: Vec<f32> = (0..n * k)
            .map(|_| if values == Values::LargePositive { random.unit() * scale } else { random.signed(scale) })
            .collect();
        let rows = WeightRows::new(format, n, k, Bytes::new(encode(format, &weights)));
        Declared(self.memory.weight("w", rows.clone()), rows)
    }

    /// A norm of rows of `k`.
    fn norm(&mut self, random: &mut Random, k: usize) -> Norm {
        let gains: Vec<_> = (0..k).map(|_| random.signed(2.0)).collect();
        let gain = self.memory.table("gains", k, &gains);
        Norm { gain, eps: 1e-5, h: self.memory.activation("h", Count::Tokens, k) }
    }

    /// Values of the first `n` rows; padding and the other rows stay canaries.
    fn rows(&mut self, t: Tensor, n: usize, mut value: impl FnMut(usize, usize) -> f32) {
        let desc = self.memory.desc(t);
        let cols = desc.cols;
        let mut host = canaries(desc);
        for (row, to) in host.f32_mut().chunks_mut(stride(cols)).take(n).enumerate() {
            for (i, to) in to[..cols].iter_mut().enumerate() {
                *to = value(row, i);
            }
        }
        self.values.insert(t, host);
    }

    fn input(&mut self, t: Tensor, words: Vec<u32>) {
        let mut host = canaries(self.memory.desc(t));
        host.u32_mut()[..words.len()].copy_from_slice(&words);
        self.values.insert(t, host);
    }

    fn attention_inputs(&mut self, d: AttentionDims, batch: &Batch) -> AttentionInputs {
        let m = &mut self.memory;
        let capacity = m.capacity;
        let parts = capacity.sequences * AttentionDims::parts(capacity.of(Count::Pages)) * d.heads;
        let inputs = AttentionInputs {
            tokens: m.input("tokens", Count::Tokens, 4),
            sequences: m.input("sequences", Count::Sequences, 4),
            tiles: m.input("tiles", Count::Tiles, 4),
            pages: m.tensor("pages", Element::U32, batch.list.len() + 3, 2),
            parts: m.tensor("parts", Element::F32, parts, d.head_dim + 4),
            near: m.tensor("near", Element::F32, capacity.tokens * d.heads, 4),
            far: None,
        };
        self.input(inputs.tokens, batch.tokens.as_flattened().to_vec());
        self.input(inputs.sequences, batch.sequences.as_flattened().to_vec());
        self.input(inputs.tiles, batch.tiles.as_flattened().to_vec());
        self.input(inputs.pages, batch.list.as_flattened().to_vec());
        inputs
    }

    fn kv_pages(&mut self, d: AttentionDims, batch: &Batch) -> [Tensor; 2] {
        let capacity = self.memory.capacity;
        ["k_pages", "v_pages"]
            .map(|name| self.memory.tensor(name, capacity.kv, batch.pages * d.kv_heads * PAGE, d.head_dim))
    }

    /// k and v of the step's tokens in the order of tokens.
    fn kv_rows(&mut self, d: AttentionDims) -> [Tensor; 2] {
        ["k", "v"].map(|name| self.memory.activation(name, Count::Tokens, d.kv_heads * d.head_dim))
    }

    /// Where k and v of the step's tokens are written first.
    fn kv_written(&mut self, d: AttentionDims, batch: &Batch) -> [Tensor; 2] {
        if self.memory.capacity.kv.is_blocks() { self.kv_rows(d) } else { self.kv_pages(d, batch) }
    }

    fn record(self, name: String, mode: Mode, steps: Vec<Step>, record: impl FnOnce(&mut Recorder)) -> Setup {
        let mut recorder = Recorder::new(&self.memory, mode);
        record(&mut recorder);
        let program = recorder.finish();
        let Draft { memory, values, magnitudes } = self;
        let tolerance = match memory.tile.maths {
            Maths::F32 => TOLERANCE,
            Maths::Coopmat if memory.tile.matrices.shape == MatrixShape::F32x8 => TOLERANCE,
            // A naive version rounds each weight and each x by 2^-11 at most.
            Maths::F16 | Maths::Coopmat => 4.0 / 2048.0,
            // One x rounds up in f64 and down in f32, by a step of 1 / 127 of the largest.
            Maths::Dot8 => 1e-3,
        };
        Setup { name, memory, program, steps, values, magnitudes, tolerance }
    }
}

impl Declared {
    /// The first and last row of each part.
    fn part_edges(&self, parts: usize) -> Vec<u32> {
        let (n, fit) = (self.1.rows, self.1.rows.div_ceil(parts).next_multiple_of(SLAB));
        (0..n).step_by(fit).flat_map(|first| [first as u32, n.min(first + fit) as u32 - 1]).collect()
    }

    /// `sum_k |w[n, k]| |x[t, k]|`, and `|y[t, n]|` where it is added to, rows padded as y's.
    fn magnitudes(&self, x: &[f32], t: usize, y: Option<&[f32]>) -> Vec<f64> {
        let (n, k) = (self.1.rows, self.1.cols);
        let mut sums = vec![0.0; t * stride(n)];
        let mut weights = vec![0.0; k];
        for row in 0..n {
            self.1.decode_row(row, &mut weights);
            for t in 0..t {
                let at = t * stride(n) + row;
                let products = weights.iter().zip(&x[t * stride(k)..]).map(|(w, x)| f64::from(w * x).abs());
                sums[at] = products.sum::<f64>() + y.map_or(0.0, |y| f64::from(y[at]).abs());
            }
        }
        sums
    }
}

impl Setup {
    /// The values that a tensor has before the first dispatch.
    pub fn host(&self, t: Tensor) -> Host {
        let desc = self.memory.desc(t);
        match self.values.get(&t) {
            Some(host) => host.clone(),
            None if desc.is_table => desc.host().unwrap(),
            None => canaries(desc),
        }
    }

    /// The values of each of the program's tensors.
    pub fn hosts(&self) -> HashMap<Tensor, Host> {
        self.program.dispatches.iter().flat_map(|d| &d.tensors).map(|t| (*t, self.host(*t))).collect()
    }

    /// Sets the magnitudes of attention's `results`: what it answers for the magnitudes of the values v.
    fn weigh(&mut self, v: Tensor, results: [Tensor; 2]) {
        let mut hosts = self.hosts();
        for x in hosts.get_mut(&v).expect("v is a tensor of the program").f32_mut() {
            *x = x.abs();
        }
        for d in &self.program.dispatches {
            let mut tensors: Vec<_> = d.tensors.iter().map(|t| hosts[t].clone()).collect();
            (d.kernel.reference)(&d.spec, &self.steps[0], &mut tensors);
            hosts.extend(d.tensors.iter().copied().zip(tensors));
        }
        for t in results.iter().filter(|t| hosts.contains_key(t)) {
            // A canary says nothing of magnitude.
            let sums = hosts[t].f32().iter().map(|x| if x.is_nan() { 0.0 } else { f64::from(x.abs()) }).collect();
            self.magnitudes.insert(*t, sums);
        }
    }
}

/// Inputs of a ragged batch, and where its keys and values are.
struct Batch {
    tokens: Vec<[u32; 4]>,
    sequences: Vec<[u32; 4]>,
    tiles: Vec<[u32; 4]>,
    list: Vec<[u32; 2]>,
    step: Step,
    /// Pages of each sequence, in order of position, and its positions.
    tables: Vec<(Vec<u32>, usize)>,
    pages: usize,
    context: usize,
}

impl Batch {
    fn new(sequences: &[Sequence], order: u64) -> Self {
        let pages_of = |s: &Sequence| (s.0 + s.1).div_ceil(PAGE);
        // Pages that no sequence has are spread among the others.
        let pages = sequences.iter().map(pages_of).sum::<usize>() + 5;
        let mut free: Vec<_> = (0..pages as u32).collect();
        Random(order).shuffle(&mut free);
        let context = sequences.iter().map(|s| (s.0 + s.1 + 3 * PAGE).next_multiple_of(PAGE)).max().unwrap_or(PAGE);
        let mut batch = Batch {
            tokens: vec![],
            sequences: vec![],
            tiles: vec![],
            list: vec![],
            step: Step::default(),
            tables: vec![],
            pages,
            context,
        };
        for (b, s) in sequences.iter().enumerate() {
            let Sequence(before, new, listed) = *s;
            let table: Vec<_> = (0..pages_of(s)).map(|_| free.pop().expect("counted above")).collect();
            let first = batch.tokens.len();
            for p in before..before + new {
                let slot = table[p / PAGE] * PAGE as u32 + (p % PAGE) as u32;
                batch.tokens.push([1000 + b as u32, p as u32, slot, b as u32]);
            }
            let entry = |i: usize| [table[i], (i * PAGE) as u32];
            let from = batch.list.len();
            match listed {
                All => batch.list.extend((0..table.len()).map(entry)),
                From(i) => batch.list.extend((i..table.len()).map(entry)),
                Reversed => batch.list.extend((0..table.len()).rev().map(entry)),
                Unseen => batch.list.extend((0..2).map(|i| [free[i], (before + new + i * PAGE) as u32])),
                Nothing => {}
            }
            batch.sequences.push([from, batch.list.len() - from, first, new].map(|n| n as u32));
            for tile in (0..new).step_by(AttentionDims::TILE) {
                let [entry, entries, ..] = batch.sequences[b];
                let n = (new - tile).min(AttentionDims::TILE);
                batch.tiles.push([entry, entries, (first + tile) as u32, n as u32]);
            }
            batch.tables.push((table, before + new));
        }
        batch.step = Step {
            n_tokens: batch.tokens.len() as u32,
            n_outputs: 0,
            n_sequences: batch.sequences.len() as u32,
            n_tiles: batch.tiles.len() as u32,
            max_pages: batch.sequences.iter().map(|s| s[1]).max().unwrap_or(0),
            ..Step::default()
        };
        batch
    }

    fn capacity(&self, kv: Element) -> Capacity {
        let (tokens, sequences) = (self.tokens.len() + 3, self.sequences.len() + 2);
        Capacity { tokens, sequences, context: self.context, pages: self.pages, kv, ..CAPACITY }
    }

    /// Draws the keys or values at every position of the sequences, whatever the order of pages; the rest stays NaN.
    fn fill(&self, setup: &mut Draft, d: AttentionDims, t: Tensor, mut value: impl FnMut(usize) -> f32) {
        let mut host = canaries(setup.memory.desc(t));
        for (table, len) in &self.tables {
            for p in 0..*len {
                for g in 0..d.kv_heads {
                    let row = (table[p / PAGE] as usize * d.kv_heads + g) * PAGE + p % PAGE;
                    let values: Vec<_> = (0..d.head_dim).map(&mut value).collect();
                    host.set_kv_row(row * d.head_dim, &values);
                }
            }
        }
        setup.values.insert(t, host);
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// From 0 to 1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// From -scale to scale.
    pub fn signed(&mut self, scale: f32) -> f32 {
        (self.unit() * 2.0 - 1.0) * scale
    }

    /// cos and sin of so many angles.
    fn turns(&mut self, n: usize) -> Vec<f32> {
        let angles = std::iter::repeat_with(|| self.signed(3.2));
        angles.take(n).flat_map(|angle| [angle.cos(), angle.sin()]).collect()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    fn value(&mut self, values: Values) -> f32 {
        match values {
            Values::Unit => self.signed(1.0),
            Values::Large | Values::Peaked => self.signed(LARGE),
            Values::LargePositive => self.unit() * LARGE,
        }
    }
}
