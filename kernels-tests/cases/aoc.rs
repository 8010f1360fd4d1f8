//! Cases of the kernels of anchored attention: trees of random rows in shuffled pages.

use farpast::kernel::{Count, Step};
use farpast::kernels::{AttentionDims, Cover, CoverTensors, FarInputs, Scores, Trials};
use farpast::memory::{Capacity, Element, Host, Tensor, Tile};
use farpast::program::Mode;

use super::{CAPACITY, Draft, PAGE, Random, Setup, canaries, dims};

/// One step of building a tree, or its use.
#[derive(Clone, Copy, Debug)]
pub enum Aoc {
    /// Coordinates of the rows.
    Points { dims: AttentionDims, kv: Element, rows: usize },
    /// Effective rank of the rows.
    Rank { heads: usize, rows: usize, values: Spread },
    /// One bisection of all segments.
    Split { heads: usize, rows: usize, segment: usize, values: Spread },
    /// Errors of a width, of four tokens.
    Gate { dims: AttentionDims, width: usize },
    /// Queries that were kept at three positions, in pages of their own.
    Recall { dims: AttentionDims, kv: Element },
    /// Rows to their pages.
    Gather { dims: AttentionDims, kv: Element, rows: usize },
    /// Anchors of the depth of so many nodes.
    Nodes { dims: AttentionDims, kv: Element, rows: usize, nodes: usize },
    /// Trees of so many rows, looked at from nodes of `size` rows on; a width for each key and value head.
    Lookup {
        dims: AttentionDims,
        kv: Element,
        trees: &'static [usize],
        size: usize,
        widths: &'static [u32],
        cap: f32,
        gap: f32,
        tile: Tile,
    },
}

/// What coordinates look like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spread {
    /// Of their own scale in each coordinate.
    Scaled,
    /// All rows are the same.
    Constant,
    /// Some are no numbers.
    Nan,
}

pub fn points() -> Vec<Aoc> {
    vec![
        Aoc::Points { dims: dims(6, 2, 8), kv: Element::F32, rows: 48 },
        Aoc::Points { dims: dims(3, 3, 20), kv: Element::F16, rows: 80 },
        Aoc::Points { dims: dims(9, 3, 64), kv: Element::F16, rows: 512 },
        Aoc::Points { dims: dims(3, 1, 80), kv: Element::Q8_0, rows: 48 },
        Aoc::Points { dims: dims(6, 2, 12), kv: Element::Q4_0, rows: 48 },
    ]
}

pub fn split() -> Vec<Aoc> {
    vec![
        Aoc::Split { heads: 2, rows: 64, segment: 16, values: Spread::Scaled },
        Aoc::Split { heads: 3, rows: 128, segment: 128, values: Spread::Scaled },
        Aoc::Split { heads: 1, rows: 512, segment: 256, values: Spread::Scaled },
        Aoc::Split { heads: 1, rows: 32, segment: 32, values: Spread::Constant },
    ]
}

pub fn order() -> Vec<Aoc> {
    [split(), vec![Aoc::Split { heads: 2, rows: 128, segment: 128, values: Spread::Nan }]].concat()
}

pub fn gate() -> Vec<Aoc> {
    vec![Aoc::Gate { dims: dims(6, 2, 12), width: 0 }, Aoc::Gate { dims: dims(5, 1, 36), width: 2 }]
}

pub fn recall() -> Vec<Aoc> {
    vec![
        Aoc::Recall { dims: dims(6, 2, 12), kv: Element::F32 },
        Aoc::Recall { dims: dims(5, 1, 36), kv: Element::F16 },
        Aoc::Recall { dims: dims(3, 3, 80), kv: Element::F16 },
        Aoc::Recall { dims: dims(6, 2, 80), kv: Element::Q8_0 },
        Aoc::Recall { dims: dims(4, 2, 20), kv: Element::Q4_0 },
    ]
}

pub fn rank() -> Vec<Aoc> {
    vec![
        Aoc::Rank { heads: 2, rows: 48, values: Spread::Scaled },
        Aoc::Rank { heads: 3, rows: 512, values: Spread::Scaled },
        Aoc::Rank { heads: 1, rows: 32, values: Spread::Constant },
    ]
}

pub fn gather() -> Vec<Aoc> {
    vec![
        Aoc::Gather { dims: dims(6, 2, 8), kv: Element::F32, rows: 48 },
        Aoc::Gather { dims: dims(3, 1, 80), kv: Element::F16, rows: 64 },
        Aoc::Gather { dims: dims(4, 2, 80), kv: Element::Q8_0, rows: 48 },
        Aoc::Gather { dims: dims(6, 2, 12), kv: Element::Q4_0, rows: 48 },
        Aoc::Gather { dims: dims(4, 1, 256), kv: Element::F32, rows: 48 },
    ]
}

pub fn nodes() -> Vec<Aoc> {
    vec![
        Aoc::Nodes { dims: dims(6, 2, 12), kv: Element::F32, rows: 128, nodes: 16 },
        Aoc::Nodes { dims: dims(6, 2, 12), kv: Element::F32, rows: 128, nodes: 4 },
        Aoc::Nodes { dims: dims(3, 1, 80), kv: Element::F16, rows: 256, nodes: 32 },
        Aoc::Nodes { dims: dims(3, 1, 80), kv: Element::F16, rows: 256, nodes: 1 },
        Aoc::Nodes { dims: dims(4, 2, 80), kv: Element::Q8_0, rows: 128, nodes: 16 },
        Aoc::Nodes { dims: dims(6, 2, 12), kv: Element::Q4_0, rows: 128, nodes: 8 },
    ]
}

pub fn lookup() -> Vec<Aoc> {
    const NEVER: f32 = 1e30;
    let case = |dims, kv, trees, size, widths, [cap, gap]: [f32; 2], lanes| {
        let tiles = [Tile { lanes, ..Tile::SOFTWARE }, Tile::SUBGROUPS];
        tiles.map(|tile| Aoc::Lookup { dims, kv, trees, size, widths, cap, gap, tile })
    };
    let alone = |gap| case(dims(4, 2, 20), Element::F32, &[128, 64], 16, &[3, 0], [0.0, gap], 32);
    let cases = [
        case(dims(6, 2, 12), Element::F32, &[128, 64], 32, &[3, 2], [0.0, NEVER], 8),
        case(dims(6, 2, 12), Element::F32, &[128, 64, 32], 128, &[0, 5], [0.0, NEVER], 64),
        case(dims(5, 1, 36), Element::F16, &[512], 8, &[17], [0.0, NEVER], 8),
        case(dims(8, 1, 132), Element::F16, &[256, 256], 64, &[4], [0.0, NEVER], 16),
        // More than MOST rows of leaves; trees that enter below the first depth, two at once.
        case(dims(4, 2, 64), Element::F16, &[1024, 512], 16, &[41, 64], [0.0, NEVER], 32),
        case(dims(6, 2, 12), Element::F32, &[256, 64, 64, 16], 128, &[5, 2], [0.0, NEVER], 16),
        case(dims(3, 3, 8), Element::F32, &[], 8, &[4, 0, 1], [0.0, NEVER], 8),
        case(dims(6, 2, 12), Element::F32, &[128, 64], 32, &[3, 2], [2.5, NEVER], 8),
        case(dims(6, 2, 80), Element::Q8_0, &[128, 64], 32, &[3, 2], [0.0, NEVER], 8),
        case(dims(4, 2, 64), Element::Q4_0, &[256, 64], 32, &[3, 0], [0.0, NEVER], 16),
        alone(0.08),
        alone(0.3),
        alone(0.9),
    ];
    cases.concat()
}

impl Aoc {
    pub fn setup(self, order: u64) -> Setup {
        let mut random = Random(17);
        match self {
            Aoc::Points { dims: d, kv, rows } => {
                let mut built = Built::new(d, kv, rows, order);
                let (tensors, pages) = (built.tensors, built.kv);
                built.draft.fill_kv(pages, &mut random);
                let step = Step { rows: rows as u32, ..Step::default() };
                built.draft.record(format!("{self:?}"), Mode::Prefill, vec![step], |r| {
                    r.aoc_points(d, cover(rows + 16, 8, 0, 0.0), 0.25, tensors, pages)
                })
            }
            Aoc::Rank { heads, rows, values } => {
                let mut built = Built::new(dims(heads, heads, 8), Element::F32, rows, order);
                let (tensors, capacity) = (built.tensors, rows + 16);
                built.draft.rows(tensors.points, heads * capacity, |_, p| match values {
                    Spread::Constant => p as f32,
                    _ => random.signed(1.0 + (p * 7 % 64) as f32 / 16.0),
                });
                let layer = built.draft.memory.words("layer", [1, 0, 0, 0]);
                let step = Step { rows: rows as u32, ..Step::default() };
                built.draft.record(format!("{self:?}"), Mode::Prefill, vec![step], |r| {
                    r.aoc_rank(heads, cover(capacity, 8, 0, 0.0), layer, tensors)
                })
            }
            Aoc::Split { heads, rows, segment, values } => {
                let mut built = Built::new(dims(heads, heads, 8), Element::F32, rows, order);
                let (tensors, capacity) = (built.tensors, rows + 16);
                built.draft.rows(tensors.points, heads * capacity, |row, p| match values {
                    Spread::Scaled => random.signed(1.0 + (p * 7 % 64) as f32 / 16.0),
                    Spread::Constant => p as f32,
                    Spread::Nan if row % 5 == 2 => f32::NAN,
                    Spread::Nan => random.signed(2.0),
                });
                let places = |i: usize| (i % capacity * 37 + 5) % rows;
                built.draft.input(tensors.order, (0..heads * capacity).map(|i| places(i) as u32).collect());
                let step = Step { rows: rows as u32, segment: segment as u32, ..Step::default() };
                built.draft.magnitudes.insert(tensors.keys, vec![64.0; heads * capacity]);
                let mut setup = built.draft.record(format!("{self:?}"), Mode::Prefill, vec![step], |r| {
                    r.aoc_split(heads, cover(capacity, 8, 0, 0.0), tensors)
                });
                if values == Spread::Nan {
                    setup.program.dispatches.retain(|d| ["aoc_runs", "aoc_order"].contains(&d.kernel.name));
                    let key = |i: usize| if i % 5 == 2 { f32::NAN } else { (i * 13 % 31) as f32 - 9.0 };
                    setup.values.insert(tensors.keys, Host::F32((0..heads * capacity).map(key).collect()));
                }
                setup
            }
            Aoc::Gate { dims: d, width } => {
                let mut draft = Draft::with(Capacity { tokens: 8, ..CAPACITY });
                let cover = Cover { kv_heads: d.kv_heads, ..cover(64, 8, 3 * d.kv_heads, 0.0) };
                let m = &mut draft.memory;
                let exact = m.activation("exact", Count::Tokens, d.heads * d.head_dim);
                let near = m.tensor("near", Element::F32, 8 * d.heads, 4);
                let layer = m.words("layer", [d.kv_heads as u32, 0, 0, 0]);
                let trials = Trials::declare(d, cover, m);
                draft.rows(near, 4 * d.heads, |_, _| random.signed(1.0));
                for t in [exact, trials.answer] {
                    draft.rows(t, 4, |_, _| random.signed(2.0));
                }
                draft.rows(trials.errors, cover.heads * Cover::TRIALS.len(), |_, _| random.unit());
                let step = Step { n_tokens: 4, ..Step::default() };
                draft.record(format!("{self:?}"), Mode::Prefill, vec![step], |r| {
                    r.aoc_gate(d, layer, width, [exact, near], trials)
                })
            }
            Aoc::Recall { dims: d, kv } => {
                let kept = Cover::kept_pages(d.heads / d.kv_heads);
                let places = shuffled(2 * kept + 2, order);
                let mut draft = Draft::with(Capacity {
                    tokens: 8,
                    sequences: 3,
                    context: 1024,
                    pages: 2 * kept + 2,
                    kv,
                    ..CAPACITY
                });
                let cover = cover(64, 8, 5, 0.0);
                let m = &mut draft.memory;
                let tokens = m.input("tokens", Count::Tokens, 4);
                let layer = m.words("layer", [0; 4]);
                let far = FarInputs {
                    layers: layer,
                    trials: layer,
                    far: m.tensor("far", Element::U32, 3, 4),
                    lists: m.tensor("lists", Element::U32, 2 * (kept + 20), 1),
                };
                let pages =
                    ["k_pages", "v_pages"].map(|n| m.tensor(n, kv, (2 * kept + 2) * d.kv_heads * PAGE, d.head_dim));
                let q = m.activation("q", Count::Tokens, d.heads * d.head_dim);
                draft.fill_kv(pages, &mut random);
                // The last two of one sequence; the last of all turns of the ring, and its first.
                let last = (Cover::SPAN - Cover::STRIDE) as u32;
                let positions = [[5, 1024 + 4, 0, 1], [5, last, 0, 0], [5, 1024 + 12, 0, 1]];
                draft.input(tokens, positions.as_flattened().to_vec());
                let all = cover.widths();
                draft.input(far.far, [[2, 0, 8, 1], [2, 0, 8, (1 + all + kept) as u32]].as_flattened().to_vec());
                let list = |pages: &[u32]| [vec![3; all], pages.to_vec()].concat();
                let lists = [vec![9], list(&places[..kept]), list(&places[kept..2 * kept])].concat();
                draft.input(far.lists, lists);
                let step = Step { n_tokens: 3, n_sequences: 2, ..Step::default() };
                draft.record(format!("{self:?}"), Mode::Prefill, vec![step], |r| {
                    r.aoc_recall(d, cover, tokens, far, pages, q)
                })
            }
            Aoc::Gather { dims: d, kv, rows } => {
                let mut built = Built::new(d, kv, rows, order);
                let (tensors, pages, capacity) = (built.tensors, built.kv, rows + 16);
                built.draft.fill_kv(pages, &mut random);
                let places = |i: usize| ((i % capacity * 5 + i / capacity) % rows) as u32;
                built.draft.input(tensors.order, (0..d.kv_heads * capacity).map(places).collect());
                let step = Step { rows: rows as u32, ..Step::default() };
                built.draft.record(format!("{self:?}"), Mode::Prefill, vec![step], |r| {
                    r.aoc_gather(d, cover(capacity, 8, 0, 0.0), tensors, pages)
                })
            }
            Aoc::Nodes { dims: d, kv, rows, nodes } => {
                let mut built = Built::new(d, kv, rows, order);
                let (tensors, pages) = (built.tensors, built.kv);
                built.draft.fill_kv(pages, &mut random);
                let step = Step { rows: rows as u32, segment: nodes as u32, ..Step::default() };
                built.draft.record(format!("{self:?}"), Mode::Prefill, vec![step], |r| r.aoc_nodes(d, tensors, pages))
            }
            Aoc::Lookup { dims: d, kv, trees, size, widths, cap, gap, tile } => {
                lookup_setup(format!("{self:?}"), d, kv, trees, size, widths, [cap, gap], tile, order)
            }
        }
    }

    /// How it runs.
    pub fn tile(&self) -> Tile {
        match self {
            Aoc::Lookup { tile, .. } => *tile,
            _ => Tile::SOFTWARE,
        }
    }

    /// Whether faults are looked for with this case.
    pub fn is_small(&self) -> bool {
        match self {
            Aoc::Points { rows, .. } | Aoc::Split { rows, .. } | Aoc::Gather { rows, .. } => *rows < 200,
            Aoc::Gate { .. } | Aoc::Recall { .. } | Aoc::Nodes { .. } | Aoc::Rank { .. } => true,
            Aoc::Lookup { dims, .. } => dims.head_dim < 60,
        }
    }
}

fn cover(rows: usize, lanes: usize, widths: usize, gap: f32) -> Cover {
    Cover { rows, gap, lanes, heads: widths, kv_heads: 0, group: 1 }
}

/// Tensors of a tree of `rows` rows, which lie in pages of the second half of the pool.
struct Built {
    draft: Draft,
    tensors: CoverTensors,
    kv: [Tensor; 2],
}

impl Built {
    fn new(d: AttentionDims, kv: Element, rows: usize, order: u64) -> Self {
        let pages_of = |n: usize| n.div_ceil(PAGE);
        let (source, tree) = (pages_of(rows), pages_of(rows) + pages_of(2 * rows / Cover::LEAF));
        let n_queries = Cover::POINTS / (2 * PAGE);
        let pages = source + tree + n_queries + 3;
        let places = shuffled(pages, order);
        let mut draft = Draft::with(Capacity { context: rows + PAGE, pages, kv, ..CAPACITY });
        let capacity = rows + 16;
        let m = &mut draft.memory;
        let tensors = CoverTensors {
            source: m.tensor("source", Element::U32, capacity, 1),
            queries: m.tensor("queries", Element::U32, n_queries + 1, 1),
            pages: m.tensor("tree_pages", Element::U32, tree + 2, 1),
            points: m.tensor("points", Element::F32, d.kv_heads * capacity, Cover::POINTS),
            direction: m.tensor("direction", Element::F32, d.kv_heads * capacity, Cover::POINTS),
            keys: m.tensor("keys", Element::F32, d.kv_heads, capacity),
            order: m.tensor("order", Element::U32, d.kv_heads * capacity, 1),
            sorted: m.tensor("sorted", Element::U32, d.kv_heads * capacity, 1),
            before: m.tensor("before", Element::U32, d.kv_heads * capacity, 1),
            ranks: m.tensor("ranks", Element::F32, 1, d.kv_heads + 2),
        };
        let kv = ["k_pages", "v_pages"].map(|n| m.tensor(n, kv, pages * d.kv_heads * PAGE, d.head_dim));
        let slot = |i: usize| places[i / PAGE] * PAGE as u32 + (i % PAGE) as u32;
        draft.input(tensors.source, (0..rows).map(|i| slot((i * 7 + 3) % rows)).collect());
        draft.input(tensors.pages, places[source..source + tree].to_vec());
        draft.input(tensors.queries, places[source + tree..][..n_queries].to_vec());
        Self { draft, tensors, kv }
    }
}

impl Draft {
    /// Every slot of every page holds a row.
    fn fill_kv(&mut self, kv: [Tensor; 2], random: &mut Random) {
        for t in kv {
            let mut host = canaries(self.memory.desc(t));
            let desc = self.memory.desc(t);
            for row in 0..desc.rows {
                let values: Vec<_> = (0..desc.cols).map(|_| random.signed(2.0)).collect();
                host.set_kv_row(row * desc.cols, &values);
            }
            self.values.insert(t, host);
        }
    }
}

#[allow(clippy::too_many_arguments)]
fn lookup_setup(
    name: String,
    d: AttentionDims,
    kv: Element,
    trees: &[usize],
    size: usize,
    widths: &[u32],
    [cap, gap]: [f32; 2],
    tile: Tile,
    order: u64,
) -> Setup {
    let mut random = Random(23);
    // Two sequences: the first without a far past, as is the third token's.
    let pages_of = |rows: usize| [rows / PAGE, (2 * rows / Cover::LEAF).div_ceil(PAGE)];
    let kept = Cover::kept_pages(d.heads / d.kv_heads);
    let tree_pages: usize = trees.iter().flat_map(|rows| pages_of(*rows)).sum();
    let pages = 2 * kept + tree_pages + 2;
    let places = shuffled(pages, order);
    let mut draft = Draft::with(Capacity { tokens: 8, sequences: 3, context: 1024, pages, kv, ..CAPACITY });
    draft.memory.tile = tile;
    let (first, all) = (2, widths.len() + 2);
    let mut far = vec![[0, 0, size as u32, 0], [0; 4]];
    let mut lists: Vec<u32> = vec![0; all];
    lists.extend(&places[..kept]);
    far[1] = [2, trees.len() as u32, size as u32, lists.len() as u32];
    lists.extend([7, 9]);
    lists.extend(widths);
    lists.extend(&places[kept..2 * kept]);
    let mut next = 2 * kept;
    for rows in trees {
        let [of_rows, of_nodes] = pages_of(*rows);
        far.push([*rows as u32, lists.len() as u32, (lists.len() + of_rows) as u32, 0]);
        lists.extend(&places[next..next + of_rows + of_nodes]);
        next += of_rows + of_nodes;
    }
    let m = &mut draft.memory;
    let tokens = m.input("tokens", Count::Tokens, 4);
    let layer = m.words("layer", [first, 0, 0, 0]);
    let inputs = FarInputs {
        layers: layer,
        trials: layer,
        far: m.tensor("far", Element::U32, far.len() + 1, 4),
        lists: m.tensor("lists", Element::U32, lists.len() + 1, 1),
    };
    let near = m.tensor("near", Element::F32, 8 * d.heads, 4);
    let [q, o] = ["q", "o"].map(|n| m.activation(n, Count::Tokens, d.heads * d.head_dim));
    let pages = ["k_pages", "v_pages"].map(|n| m.tensor(n, kv, pages * d.kv_heads * PAGE, d.head_dim));
    // Of the second sequence two tokens, of which the first's queries are kept for trials; of the first a query for the metric.
    let positions: [[u32; 4]; 3] = [[5, 1028, 0, 1], [5, 1029, 0, 1], [5, 536, 0, 0]];
    draft.input(tokens, positions.as_flattened().to_vec());
    draft.input(inputs.far, far.as_flattened().to_vec());
    draft.input(inputs.lists, lists);
    draft.rows(near, 3 * d.heads, |_, i| if i == 0 { random.signed(2.0) } else { 3.0 * random.unit() });
    for x in [q, o] {
        draft.rows(x, 3, |_, _| random.signed(2.0));
    }
    draft.fill_kv(pages, &mut random);
    let scores = Scores { scale: 1.0 / (d.head_dim as f32).sqrt(), window: 0, cap };
    let step = Step { n_tokens: 3, n_sequences: 2, ..Step::default() };
    draft.record(name, Mode::Decode, vec![step], |r| {
        let cover = cover(1024, tile.lanes, all, gap);
        r.aoc_lookup(d, cover, layer, scores, tokens, inputs, [q, pages[0], pages[1], near, o])
    })
}

/// Pages in an order of their own.
fn shuffled(n: usize, order: u64) -> Vec<u32> {
    let mut random = Random(order);
    let mut pages: Vec<u32> = (0..n as u32).collect();
    (1..n).rev().for_each(|i| pages.swap(i, random.below(i + 1)));
    pages
}
