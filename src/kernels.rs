//! One file for each kernel: the definition, the bindings, and the method of [`Recorder`] that
//! records it. The shader of the same name is in `shaders/`.

mod aoc_direction;
mod aoc_gate;
mod aoc_gather;
mod aoc_keys;
mod aoc_lookup;
mod aoc_nodes;
mod aoc_order;
mod aoc_points;
mod aoc_rank;
mod aoc_recall;
mod aoc_refine;
mod aoc_runs;
mod attention_decode;
mod attention_merge;
mod attention_prefill;
mod bias;
mod embed;
mod geglu;
mod kv_store;
mod linear;
mod linear_glu;
mod linear_norm;
mod linear_rope;
mod logprobs;
mod norm_rope_store;
mod output_norm;
mod penalize;
mod rmsnorm;
mod sample;
mod softcap;
mod swiglu;

pub use aoc_gate::Trials;
pub use aoc_lookup::{Cover, CoverTensors, FarInputs, Kept};
pub use attention_prefill::Scores;
pub use embed::SAMPLED;
pub use linear::Norm;
pub use linear_glu::Gate;
pub use logprobs::{LOGPROBS_ROW, read_logprobs};
pub use norm_rope_store::{Pairs, Rope};
pub use penalize::{PENDING, PenaltyInputs, PenaltyTensors};

use crate::kernel::{Kernel, Spec, Step};
use crate::memory::{Capacity, Element, Tensor, TensorDesc, Tile};
use crate::program::{Dispatch, Recorder};

/// Every kernel, for the tests that check all of them.
pub static ALL: &[&Kernel] = &[
    &embed::EMBED,
    &rmsnorm::RMSNORM,
    &linear::LINEAR,
    &linear_norm::LINEAR_NORM,
    &linear_glu::LINEAR_GLU,
    &linear_rope::LINEAR_ROPE,
    &norm_rope_store::NORM_ROPE_STORE,
    &kv_store::KV_STORE,
    &attention_prefill::ATTENTION_PREFILL,
    &attention_decode::ATTENTION_DECODE,
    &attention_merge::ATTENTION_MERGE,
    &aoc_points::AOC_POINTS,
    &aoc_direction::AOC_DIRECTION,
    &aoc_keys::AOC_KEYS,
    &aoc_rank::AOC_RANK,
    &aoc_recall::AOC_RECALL,
    &aoc_refine::AOC_REFINE,
    &aoc_runs::AOC_RUNS,
    &aoc_order::AOC_ORDER,
    &aoc_gate::AOC_GATE,
    &aoc_gather::AOC_GATHER,
    &aoc_nodes::AOC_NODES,
    &aoc_lookup::AOC_LOOKUP,
    &bias::BIAS,
    &swiglu::SWIGLU,
    &geglu::GEGLU,
    &output_norm::OUTPUT_NORM,
    &softcap::SOFTCAP,
    &penalize::PENALIZE,
    &sample::SAMPLE,
    &logprobs::LOGPROBS,
];

/// Whether a dispatch is of a kernel that runs as the [`Tile`] says.
pub(crate) fn is_tiled(d: &Dispatch) -> bool {
    d.spec.includes(linear::LINEAR_COMMON)
}

/// Shapes of an attention layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct AttentionDims {
    /// H: query heads.
    pub heads: usize,
    /// G: key and value heads, a divisor of H.
    pub kv_heads: usize,
    /// D: elements of a head, a multiple of 4.
    pub head_dim: usize,
}

impl AttentionDims {
    /// Tokens of a tile of attention_prefill.
    pub const TILE: usize = 32;
    /// Pages of a part of attention_decode. The same whatever the batch, so that a sequence gets the same bits in any.
    pub const RUN: usize = 8;

    /// Parts of a sequence and head that lists `pages` pages.
    pub fn parts(pages: usize) -> usize {
        pages.div_ceil(Self::RUN)
    }

    /// Query heads that one workgroup of an attention kernel answers: the largest share of a group up to 8.
    fn heads_each(&self) -> usize {
        let group = self.heads / self.kv_heads;
        (1..=group.min(8)).rev().find(|n| group.is_multiple_of(*n)).unwrap_or(1)
    }

    /// Tokens of a tile that one workgroup of attention_prefill answers.
    fn tokens_each(&self, tile: Tile) -> usize {
        let most = match tile.broadcast {
            // Eight invocations have the answers of all queries, 4 dims each, in 192 registers.
            true => 48 / (self.heads_each() * self.head_dim.div_ceil(32)),
            // A lane has the scores of its share of a run's 128 keys in 128 registers; all weights are 8 KiB of workgroup memory.
            false => tile.lanes.min(16) / self.heads_each(),
        };
        most.clamp(1, 8)
    }
}

/// What a step attends to: inputs that the host writes, shared by all layers.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInputs {
    /// `[T]` of (token, position, page slot, sequence).
    pub tokens: Tensor,
    /// `[B]` of (first list entry, entries, first token, tokens).
    pub sequences: Tensor,
    /// `[tiles]` of (first list entry, entries, first token, tokens).
    pub tiles: Tensor,
    /// Page lists of all sequences, one after the other: (page, its first position).
    pub pages: Tensor,
    /// `[B * parts(PAGES) * H, D + 4]`: where attention_decode leaves its parts.
    pub parts: Tensor,
    /// `[T * H, 4]`: (m, l) of what attention reads of the near past: the largest score, and the sum of `exp(score - m)`; then whether
    /// a row of the far past answers alone.
    pub near: Tensor,
    /// With the far past of sequences in trees of anchors.
    pub far: Option<(Cover, FarInputs)>,
}

/// Keys that the queries of a step see, at most. A list's last page counts in full, and where sequences differ, each counts as
/// if it had the longest list.
struct Seen {
    /// Different ones, of all sequences.
    keys: usize,
    /// Pairs of a query and a key.
    pairs: usize,
}

impl Seen {
    fn of(spec: &Spec, step: &Step) -> Self {
        let [b, t, listed] = [step.n_sequences, step.n_tokens, step.max_pages].map(|n| n as usize);
        let (s, window) = (listed * Capacity::PAGE, spec.get_u32("WINDOW"));
        // The queries of one sequence: the last sees s keys, the one before it s - 1, and no more than the window.
        let n = (t / b.max(1)).clamp(1, s.max(1));
        let whole = if window == 0 { 0 } else { (s + 1).saturating_sub(window).min(n) };
        let each = whole * window + (n - whole) * s - (n * (n - 1) - whole * whole.saturating_sub(1)) / 2;
        let keys = if window == 0 { b * s } else { (b * s).min(b * (window - 1) + t) };
        Self { keys, pairs: if s == 0 { 0 } else { each * t / n } }
    }

    /// Operations of D dims for each pair: two products with a multiply-add each, and the score's scale, maximum, exp and sum.
    fn flops(&self, heads: usize, head_dim: usize) -> usize {
        self.pairs * heads * (4 * head_dim + 4)
    }
}

const WORKGROUP: usize = 64;

/// The file that reads and writes KV elements of this kind.
fn kv_include(element: Element) -> &'static str {
    match element {
        Element::F16 => include_str!("../shaders/common/kv_f16.wgsl"),
        Element::F32 => include_str!("../shaders/common/kv_f32.wgsl"),
        _ => panic!("single elements of KV are f16 or f32, not {element:?}"),
    }
}

/// With the files that know blocks of this kind.
fn blocks_spec(spec: Spec, element: Element) -> Spec {
    let of_element = match element {
        Element::Q8_0 => include_str!("../shaders/common/kv_q8_0.wgsl"),
        Element::Q4_0 => include_str!("../shaders/common/kv_q4_0.wgsl"),
        _ => panic!("KV in blocks is q8_0 or q4_0, not {element:?}"),
    };
    spec.include(include_str!("../shaders/common/kv_blocks.wgsl")).include(of_element)
}

/// With the files by which rows of KV of this kind are copied.
fn kv_copy_spec(spec: Spec, element: Element) -> Spec {
    match element.is_blocks() {
        true => blocks_spec(spec, element).include(include_str!("../shaders/common/copy_blocks.wgsl")),
        false => spec.include(kv_include(element)).include(include_str!("../shaders/common/copy_elements.wgsl")),
    }
}

/// With the files by which rows of KV of this kind are written.
fn kv_put_spec(spec: Spec, element: Element) -> Spec {
    spec.include(match element.is_blocks() {
        true => include_str!("../shaders/common/write_blocks.wgsl"),
        false => include_str!("../shaders/common/write_elements.wgsl"),
    })
}

/// With the files by which attention reads KV of this kind.
fn kv_read_spec(spec: Spec, element: Element) -> Spec {
    match element.is_blocks() {
        true => blocks_spec(spec, element).include(include_str!("../shaders/common/read_blocks.wgsl")),
        false => spec.include(kv_include(element)).include(include_str!("../shaders/common/read_elements.wgsl")),
    }
}

impl Recorder<'_> {
    /// With the files by which k and v of a step's tokens are written to `kv`: pages `[pages * G * PAGE, D]` of f16 or f32, or, for
    /// [`kv_store`](Recorder::kv_store), rows `[T, G*D]` of f32.
    fn kv_write_spec(&self, spec: Spec, d: AttentionDims, kv: [Tensor; 2]) -> Spec {
        let TensorDesc { element, bound, .. } = *self.desc(kv[0]);
        let cols = if bound.is_some() { d.kv_heads * d.head_dim } else { d.head_dim };
        for t in kv {
            self.expect(t, element, cols);
        }
        let spec = spec.include(kv_include(element)).u32("G", d.kv_heads);
        match bound {
            Some(_) => spec.include(KV_BY_TOKEN),
            None => spec.include(SLOTS).include(KV_PAGED).u32("PAGE", Capacity::PAGE),
        }
    }
}

/// Row of the tensor that [`kv_write_spec`](Recorder::kv_write_spec) speaks of: of token `t` of the step, which is to be in `slot`.
fn written_row(spec: &Spec, t: usize, g: usize, slot: usize) -> usize {
    match spec.includes(KV_BY_TOKEN) {
        true => t * spec.get_u32("G") + g,
        false => kv_row(spec, (slot / spec.get_u32("PAGE")) as u32, g, slot),
    }
}

/// Row of a KV tensor where slot `slot` of `page`, of head `g`, is.
fn kv_row(spec: &Spec, page: u32, g: usize, slot: usize) -> usize {
    let [heads, slots] = ["G", "PAGE"].map(|n| spec.get_u32(n));
    (page as usize * heads + g) * slots + slot % slots
}

/// The file that says which invocation this is.
fn lane_include(tile: Tile) -> &'static str {
    match tile.broadcast {
        true => include_str!("../shaders/common/lane_subgroup.wgsl"),
        false => LANE,
    }
}

/// The file that sums a row's squares.
fn rms_include(tile: Tile) -> &'static str {
    match tile.broadcast {
        true => include_str!("../shaders/common/rms_broadcast.wgsl"),
        false => RMS_LOADS,
    }
}

const ADD_DOT: &str = include_str!("../shaders/common/add_dot.wgsl");
const ATTENTION: &str = include_str!("../shaders/common/attention.wgsl");
/// The file that answers a run of pages.
fn part_include(tile: Tile) -> &'static str {
    match tile.broadcast {
        true => include_str!("../shaders/common/part_broadcast.wgsl"),
        false => include_str!("../shaders/common/part_workgroup.wgsl"),
    }
}

const KV_PAGED: &str = include_str!("../shaders/common/kv_paged.wgsl");
const KV_BY_TOKEN: &str = include_str!("../shaders/common/kv_by_token.wgsl");
const LANE: &str = include_str!("../shaders/common/lane.wgsl");
const GELU: &str = include_str!("../shaders/common/gelu.wgsl");
const NORM_FOLD: &str = include_str!("../shaders/common/norm_fold.wgsl");
const OF_8: &str = include_str!("../shaders/common/of_8.wgsl");
const NORM_NONE: &str = include_str!("../shaders/common/norm_none.wgsl");
const SILU: &str = include_str!("../shaders/common/silu.wgsl");
const RMS_LOADS: &str = include_str!("../shaders/common/rms_loads.wgsl");
const SLOTS: &str = include_str!("../shaders/common/slots.wgsl");
const ROWS: &str = include_str!("../shaders/common/rows.wgsl");
const SOFTCAP_OF: &str = include_str!("../shaders/common/softcap.wgsl");
