//! Attention of each token to the far past of its sequence, answered from a forest of anchor trees and merged with what attention to
//! the near past left: `o = (e^(m - M) l o_near + sum_j e^(s_j - M) v_j) / (e^(m - M) l + sum_j e^(s_j - M))`, over anchors
//! j of nodes (mean key and value, `s_j = q · k_j * scale + log rows`) that are not expanded and rows (`s_j = q · k_j * scale`) of the
//! leaves that are. Of each depth the `width` nodes with most attention, added up over the query heads of a key and value
//! head, are expanded. Width 0 reads all rows. Where the best row of a query head leads all else of the far past by more than `gap`,
//! its value alone answers for the far past (A0).
//!
//! Source: Hooper et al. 2025, "Multipole attention" (arXiv:2506.13059), on a tree as Barnes and Hut 1986 descend theirs.

use super::attention_prefill::NEAR;
use super::{ADD_DOT, AttentionDims, OF_8, SLOTS, SOFTCAP_OF, Scores, kv_put_spec, kv_read_spec, kv_row};
use crate::kernel::Access::{Read, ReadWrite, Uniform};
use crate::kernel::{Access, Cost, Count, Extent, Kernel, Spec, Step};
use crate::memory::{Capacity, Element, Host, Memory, Tensor, TensorDesc};
use crate::program::Recorder;

/// See the module.
pub static AOC_LOOKUP: Kernel = Kernel {
    name: "aoc_lookup",
    source: include_str!("../../shaders/aoc_lookup.wgsl"),
    bindings: &[
        ("step", Access::Step),
        ("tokens", Read),
        ("far", Read),
        ("lists", Read),
        ("q", Read),
        ("k_pages", ReadWrite),
        ("v_pages", ReadWrite),
        ("near", ReadWrite),
        ("o", ReadWrite),
        ("layer", Uniform),
    ],
    reference,
    cost,
};

/// Sizes of anchored attention that all layers share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cover {
    /// Rows of the largest tree: LEAF times a power of two.
    pub rows: usize,
    /// Lead of a row, in nats, from which on it answers alone.
    pub gap: f32,
    /// Invocations of a workgroup of aoc_lookup, where they do not share by subgroup.
    pub lanes: usize,
    /// Key and value heads, of all layers that see all of the past.
    pub heads: usize,
    /// Those of one layer.
    pub kv_heads: usize,
    /// Query heads of each.
    pub group: usize,
}

/// What a query is kept for; a later one of the same turn takes its place.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kept {
    /// The metric of trees: that of one head.
    Metric(usize),
    /// Trying widths: those of all heads.
    Trials(usize),
}

impl Cover {
    /// Rows of a leaf.
    pub const LEAF: usize = 8;
    /// Queries that the metric of a tree is taken from, one head's in turn, and positions that widths are tried at, with all heads'.
    pub const POINTS: usize = 64;
    /// Positions from those of the one kind to those of the other.
    pub const STRIDE: usize = 4;
    /// Positions over which kept queries are spread.
    pub const SPAN: usize = 2 * Self::STRIDE * Self::POINTS;
    /// Nodes of one depth that are looked at, at most.
    pub const MOST: usize = 144;
    /// Nodes of one depth that are expanded, at most.
    pub const WIDEST: usize = 64;
    /// Widths that are tried.
    pub const TRIALS: [usize; 6] = [2, 6, 12, 24, 40, 64];
    /// Lead of a row in nats with which it answers alone: so much that all of a million others would have a weight below 1e-3.
    pub const GAP: f32 = 21.0;
}

/// What a sequence's lists begin with: a width for each of [`heads`](Cover::heads), and those that all heads of a layer try, 0 and one for
/// each of [`TRIALS`](Cover::TRIALS).
impl Cover {
    /// Entries before the pages of kept queries.
    pub fn widths(&self) -> usize {
        self.tried(1 + Self::TRIALS.len())
    }

    /// Whether the query at `position` is kept, for what, and in which turn of its kind.
    pub fn kept(position: usize) -> Option<Kept> {
        let (n, turn) = (position / Self::STRIDE, position / (2 * Self::STRIDE) % Self::POINTS);
        match position % Self::STRIDE {
            0 if n.is_multiple_of(2) => Some(Kept::Metric(turn)),
            0 => Some(Kept::Trials(turn)),
            _ => None,
        }
    }

    /// Pages of kept queries, where `group` query heads share keys and values.
    pub fn kept_pages(group: usize) -> usize {
        (Self::POINTS * (1 + group)).div_ceil(2 * Capacity::PAGE)
    }

    /// The first of the widths that `i` of 0 and [`TRIALS`](Cover::TRIALS) is.
    pub fn tried(&self, i: usize) -> usize {
        self.heads + i * self.kv_heads
    }
}

/// What trees are built in: tensors that all layers share.
#[derive(Clone, Copy, Debug)]
pub struct CoverTensors {
    /// `[rows]` u32: page slot of each row.
    pub source: Tensor,
    /// `[POINTS / 32]` u32: pages of the queries.
    pub queries: Tensor,
    /// u32: pages of the tree's rows, then of its nodes.
    pub pages: Tensor,
    /// `[G * rows, POINTS]`: coordinates.
    pub points: Tensor,
    /// `[G * rows, POINTS]`: a row for each segment.
    pub direction: Tensor,
    /// `[G, rows]`: where along the direction.
    pub keys: Tensor,
    /// `[G * rows]` u32: the row at each place.
    pub order: Tensor,
    /// `[G * rows]` u32: keys, as u32 of the same order, and rows of runs that are sorted.
    pub sorted: Tensor,
    /// See `sorted`.
    pub before: Tensor,
    /// `[heads]`: effective rank of the keys.
    pub ranks: Tensor,
}

/// The far past of the sequences of a step: inputs that the host writes, shared by all layers.
#[derive(Clone, Copy, Debug)]
pub struct FarInputs {
    /// `[B]` of (first tree, trees, rows of the nodes looked at first, first entry of its lists), zeros where it never has a tree; then trees, of (rows, first entry of
    /// its rows' pages, first of its nodes' pages, 0).
    pub far: Tensor,
    /// u32. Of a sequence: widths, pages of kept queries; of a tree: pages of rows, pages of nodes.
    pub lists: Tensor,
    /// The first of tables, one for each layer: its first head. Those of the next layers follow.
    pub layers: Tensor,
    /// The first of tables of where in `lists` the widths are that all heads try: 0, and each of [`Cover::TRIALS`].
    pub trials: Tensor,
}

impl CoverTensors {
    /// For models of so many key and value heads.
    pub fn declare(kv_heads: usize, cover: Cover, m: &mut Memory) -> Self {
        let (rows, page) = (cover.rows, Capacity::PAGE);
        let mut words = |name: &str, n: usize| m.tensor(name, Element::U32, n, 1);
        let source = words("source", rows);
        let queries = words("queries", Cover::POINTS / (2 * page));
        let pages = words("tree", rows / page + (2 * rows / Cover::LEAF).div_ceil(page));
        let [order, sorted, before] = ["order", "sorted", "before"].map(|name| words(name, kv_heads * rows));
        let [points, direction] =
            ["points", "direction"].map(|name| m.tensor(name, Element::F32, kv_heads * rows, Cover::POINTS));
        let keys = m.tensor("keys", Element::F32, kv_heads, rows);
        let ranks = m.tensor("ranks", Element::F32, 1, cover.heads);
        Self { source, queries, pages, points, direction, keys, order, sorted, before, ranks }
    }
}

impl FarInputs {
    /// For the sequences of a step. A tree of a page at least takes as many pages again for its nodes, at most.
    pub fn declare(cover: Cover, m: &mut Memory) -> Self {
        let (sequences, pages) = (m.capacity.sequences, m.capacity.of(Count::Pages));
        let far = m.tensor("far", Element::U32, sequences * (1 + pages), 4);
        let lists = m.tensor(
            "lists",
            Element::U32,
            sequences * (cover.widths() + Cover::kept_pages(cover.group) + 2 * pages),
            1,
        );
        let layers: Vec<_> =
            (0..cover.heads).step_by(cover.kv_heads).map(|first| m.words("layer", [first as u32, 0, 0, 0])).collect();
        let trials: [_; 1 + Cover::TRIALS.len()] =
            std::array::from_fn(|i| m.words("trial", [cover.tried(i) as u32, 0, 0, 0]));
        Self { far, lists, layers: layers[0], trials: trials[0] }
    }

    /// The table of layer `i`, of those without a window.
    pub fn layer(&self, i: usize) -> Tensor {
        Tensor(self.layers.0 + i)
    }

    /// That of the width `i`, of 0 and each of [`Cover::TRIALS`].
    pub fn trial(&self, i: usize) -> Tensor {
        Tensor(self.trials.0 + i)
    }
}

/// What kernels know that read slots of pages of `element`.
pub(super) fn kv_spec(d: AttentionDims, element: Element) -> Spec {
    kv_read_spec(slots_spec(d), element).include(include_str!("../../shaders/common/rows_read.wgsl"))
}

/// What kernels know that name slots of pages.
pub(super) fn slots_spec(d: AttentionDims) -> Spec {
    let spec = Spec::default().include(SLOTS);
    spec.u32("D4", d.head_dim / 4).u32("G", d.kv_heads).u32("PAGE", Capacity::PAGE)
}

/// With the constants that say which queries are kept.
pub(super) fn kept_spec(spec: Spec) -> Spec {
    spec.include(include_str!("../../shaders/common/kept.wgsl"))
        .u32("POINTS", Cover::POINTS)
        .u32("STRIDE", Cover::STRIDE)
}

/// Where the item `i` of a head's kept queries is: whether among values, and the number of its first dim.
pub(super) fn kept_at(spec: &Spec, pages: &[u32], g: usize, i: usize) -> (usize, usize) {
    let [page, d4] = ["PAGE", "D4"].map(|n| spec.get_u32(n));
    (i / page % 2, kv_row(spec, pages[i / (2 * page)], g, i) * 4 * d4)
}

/// Vectors of q, and of o, that one of eight invocations holds, at most.
const MOST_HELD: usize = 48;

const CANDIDATES_BROADCAST: &str = include_str!("../../shaders/common/candidates_broadcast.wgsl");
const CANDIDATES_WORKGROUP: &str = include_str!("../../shaders/common/candidates_workgroup.wgsl");
pub(super) const ORDERED: &str = include_str!("../../shaders/common/ordered.wgsl");

impl Recorder<'_> {
    /// `q`, `o`: `[T, H*D]`, o that of the near past, with its (m, l) `near`; k and v pages. `layer` is one of
    /// `far`'s: where its widths begin.
    #[allow(clippy::too_many_arguments)]
    pub fn aoc_lookup(
        &mut self,
        d: AttentionDims,
        cover: Cover,
        layer: Tensor,
        scores: Scores,
        tokens: Tensor,
        far: FarInputs,
        [q, k, v, near, o]: [Tensor; 5],
    ) {
        let element = self.desc(k).element;
        let spec = kv_put_spec(kv_spec(d, element), element).include(ADD_DOT).include(SOFTCAP_OF);
        let spec = spec.u32("H", d.heads).u32("LEAF", Cover::LEAF).u32("MOST", Cover::MOST);
        let spec = spec.f32("SCALE", scores.scale).f32("CAP", scores.cap).f32("GAP", cover.gap);
        let spec = kept_spec(spec).u32("WIDTHS", cover.widths());
        let spec = match self.tile().broadcast && d.heads / d.kv_heads * d.head_dim.div_ceil(32) <= MOST_HELD {
            true => spec.include(CANDIDATES_BROADCAST).include(OF_8),
            false => spec.include(CANDIDATES_WORKGROUP).u32("LANES", cover.lanes),
        };
        let groups = [Extent::Per(Count::Tokens, 1), Extent::Fixed(d.kv_heads), Extent::Fixed(1)];
        self.dispatch(&AOC_LOOKUP, spec, &[tokens, far.far, far.lists, q, k, v, near, o, layer], groups);
    }
}

fn reference(spec: &Spec, step: &Step, tensors: &mut [Host]) {
    let [tokens, far, lists, q, k_pages, v_pages, near, o, layer] = tensors else { unreachable!() };
    let [heads, kv_heads, widths] = ["H", "G", "WIDTHS"].map(|n| spec.get_u32(n));
    let (d, group) = (4 * spec.get_u32("D4"), heads / kv_heads);
    for (t, token) in tokens.u32().chunks(4).take(step.n_tokens as usize).enumerate() {
        let [first, trees, size, list] = [0, 1, 2, 3].map(|i| far.u32()[4 * token[3] as usize + i] as usize);
        if size == 0 {
            continue;
        }
        for g in 0..kv_heads {
            let of_heads = t * heads + g * group..t * heads + (g + 1) * group;
            let queries = &q.f32()[of_heads.start * d..of_heads.end * d];
            keep(spec, token[1] as usize, &lists.u32()[list + widths..], g, queries, [&mut *k_pages, &mut *v_pages]);
            if trees == 0 {
                continue;
            }
            let (trees, lists) = (&far.u32()[4 * first..4 * (first + trees)], lists.u32());
            let near_parts: Vec<_> =
                of_heads.clone().map(|h| [0, 1].map(|i| f64::from(near.f32()[NEAR * h + i]))).collect();
            let past = Past { spec, trees: trees.as_chunks().0, lists, g, queries, k_pages, near: &near_parts };
            let answers = match lists[list + layer.u32()[0] as usize + g] as usize {
                0 => past.all_rows(),
                width => past.descend(size, width),
            };
            for (r, h) in of_heads.enumerate() {
                let out = &mut o.f32_mut()[h * d..(h + 1) * d];
                let [m, l] = near_parts[r];
                let taken = taken(&answers, r, spec.get_f32("GAP"));
                near.f32_mut()[NEAR * h + 2] = if taken.len() == 1 && answers.len() > 1 { 1.0 } else { 0.0 };
                let top = taken.iter().map(|a| a.scores[r]).fold(m, f64::max);
                let weight = |a: &Answer| (a.scores[r] - top).exp();
                let local = l * (m - top).exp();
                let sum = local + taken.iter().map(|a| weight(a)).sum::<f64>();
                for (j, x) in out.iter_mut().enumerate() {
                    let far: f64 = taken.iter().map(|a| weight(a) * f64::from(v_pages.kv(a.base + j))).sum();
                    *x = ((local * f64::from(*x) + far) / sum) as f32;
                }
            }
        }
    }
}

/// Queries that are kept go where the oldest are.
fn keep(spec: &Spec, position: usize, pages: &[u32], g: usize, queries: &[f32], mut kv: [&mut Host; 2]) {
    let d4 = spec.get_u32("D4");
    let group = queries.len() / (4 * d4);
    let mut put = |item: usize, r: usize| {
        let (half, at) = kept_at(spec, pages, g, item);
        kv[half].set_kv_row(at, &queries[r * 4 * d4..][..4 * d4]);
    };
    match Cover::kept(position) {
        Some(Kept::Metric(turn)) => put(turn, turn % group),
        Some(Kept::Trials(turn)) => (0..group).for_each(|r| put(Cover::POINTS + turn * group + r, r)),
        None => {}
    }
}

/// What answers for itself, or for the rows of a node.
struct Answer {
    /// Where its dims begin.
    base: usize,
    /// Of the query heads.
    scores: Vec<f64>,
    is_row: bool,
}

/// All answers, or the one row that leads all else by more than `gap`.
fn taken(answers: &[Answer], r: usize, gap: f64) -> Vec<&Answer> {
    let score = |i: usize| answers[i].scores[r];
    let rows = (0..answers.len()).filter(|i| answers[*i].is_row);
    let best = rows.reduce(|best, i| if score(i) > score(best) { i } else { best });
    let second = |best| (0..answers.len()).filter(|i| *i != best).map(score).fold(f64::from(f32::MIN), f64::max);
    match best.filter(|best| score(*best) - second(*best) > gap) {
        Some(alone) => vec![&answers[alone]],
        None => answers.iter().collect(),
    }
}

/// The far past of one sequence, as the query heads of one key and value head see it.
struct Past<'a> {
    spec: &'a Spec,
    trees: &'a [[u32; 4]],
    lists: &'a [u32],
    g: usize,
    queries: &'a [f32],
    k_pages: &'a Host,
    /// (m, l) of the near past, of each query head.
    near: &'a [[f64; 2]],
}

impl Past<'_> {
    /// Item `i` of what lies in the pages from `list` on, and stands for `rows` rows.
    fn answer(&self, list: u32, i: usize, rows: usize, is_row: bool) -> Answer {
        let (d, scale, cap) = (4 * self.spec.get_u32("D4"), self.spec.get_f32("SCALE"), self.spec.get_f32("CAP"));
        let page = self.lists[list as usize + i / self.spec.get_u32("PAGE")];
        let base = kv_row(self.spec, page, self.g, i) * d;
        let score = |q: &[f32]| {
            let dot: f64 =
                q.iter().enumerate().map(|(j, q)| f64::from(*q) * f64::from(self.k_pages.kv(base + j))).sum();
            if cap > 0.0 { cap * (dot * scale / cap).tanh() } else { dot * scale }
        };
        let scores = self.queries.chunks(d).map(|q| score(q) + (rows as f64).ln()).collect();
        Answer { base, scores, is_row }
    }

    fn all_rows(&self) -> Vec<Answer> {
        let rows =
            |tree: &[u32; 4]| (0..tree[0] as usize).map(|i| self.answer(tree[1], i, 1, true)).collect::<Vec<_>>();
        self.trees.iter().flat_map(rows).collect()
    }

    fn descend(&self, mut size: usize, width: usize) -> Vec<Answer> {
        let leaf = self.spec.get_u32("LEAF");
        let mut answers: Vec<Answer> = Vec::new();
        let first = |tree: &[u32; 4]| tree[0] as usize / size;
        let mut candidates: Vec<_> =
            self.trees.iter().flat_map(|tree| (first(tree)..2 * first(tree)).map(move |i| (tree, i))).collect();
        loop {
            let found: Vec<_> = candidates.iter().map(|(tree, i)| self.answer(tree[2], *i, size, false)).collect();
            // Of each query head: to the near past, what answered before, and these.
            let all = self.near.iter().enumerate().map(|(r, [m, l])| {
                let scores = answers.iter().chain(&found).map(|a| a.scores[r]);
                m + (l + scores.map(|s| (s - m).exp()).sum::<f64>()).ln()
            });
            let all: Vec<_> = all.collect();
            let attention = |a: &Answer| a.scores.iter().zip(&all).map(|(s, all)| (s - all).exp()).sum::<f64>();
            let mut ranked: Vec<_> = candidates.into_iter().zip(found).collect();
            ranked.sort_by(|(_, a), (_, b)| attention(b).total_cmp(&attention(a)));
            let others = ranked.split_off(width.min(ranked.len()));
            answers.extend(others.into_iter().map(|(_, answer)| answer));
            let expanded = ranked.iter().map(|(candidate, _)| *candidate);
            if size == leaf {
                let rows = expanded.flat_map(|(tree, i)| {
                    let first = (i - tree[0] as usize / leaf) * leaf;
                    (first..first + leaf).map(move |row| self.answer(tree[1], row, 1, true))
                });
                answers.extend(rows);
                return answers;
            }
            size /= 2;
            candidates = expanded.flat_map(|(tree, i)| [(tree, 2 * i), (tree, 2 * i + 1)]).collect();
            candidates.extend(self.trees.iter().filter(|tree| tree[0] as usize == size).map(|tree| (tree, 1)));
        }
    }
}

fn cost(spec: &Spec, step: &Step, tensors: &[&TensorDesc]) -> Cost {
    let [tokens, far, _, q, k_pages, _, near, o, layer] = tensors else { unreachable!() };
    let [heads, kv_heads, d4] = ["H", "G", "D4"].map(|n| spec.get_u32(n));
    let t = step.n_tokens as usize;
    // Nodes of four depths and rows of leaves: what width a head has, and how many rows there are, is not known here. Each counts once.
    let pairs = t * kv_heads * (4 * spec.get_u32("MOST") + Cover::WIDEST * Cover::LEAF).min(k_pages.rows / kv_heads);
    let rows = pairs.min(k_pages.rows);
    let inputs =
        tokens.bytes_of(t) + far.bytes_of(step.n_sequences as usize) + near.bytes_of(t * heads) + layer.bytes();
    let read = inputs + 2 * q.bytes_of(t) + 2 * rows * k_pages.bytes_of(1);
    Cost::new(read, o.bytes_of(t) + 4 * t * heads, pairs * heads / kv_heads * (16 * d4 + 4))
}
