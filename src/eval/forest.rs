//! Trees of the far past, as the kernels `aoc_*` define them. The references of those build the trees; this looks them up, in f32, as
//! aoc_lookup does.

use super::{Answers, Far, Past, Query, Reads, maths};
use crate::attention::aoc::{self, Unit};
use crate::kernel::Step;
use crate::kernels::{AttentionDims, Cover, CoverTensors, Kept};
use crate::kv::PAGE;
use crate::memory::{Capacity, Element, Host, Memory, Tensor};
use crate::program::{Mode, Program, Recorder};

/// How a forest is looked up.
#[derive(Clone, Copy, Debug)]
pub struct Beam {
    /// Nodes of one depth that are expanded; 0: all rows are read.
    pub width: usize,
    /// Rows of the nodes looked at first.
    pub size: usize,
}

impl Beam {
    /// Anchors and rows that it reads of a forest of `rows` rows.
    pub fn cost(self, rows: usize) -> usize {
        if self.width == 0 {
            return rows;
        }
        let (mut size, mut n, mut all) = (self.size, rows / self.size, 0);
        loop {
            all += n;
            let expanded = n.min(self.width);
            if size == Cover::LEAF {
                return all + expanded * Cover::LEAF;
            }
            size /= 2;
            n = 2 * expanded + usize::from(rows & size != 0);
        }
    }
}

/// Trees of perfect halves, largest first, of all rows of one key and value head.
pub struct Forest {
    /// D.
    pub d: usize,
    /// Trees.
    pub trees: Vec<Tree>,
}

/// One of them.
pub struct Tree {
    /// LEAF times a power of two.
    pub rows: usize,
    /// `[rows, D]` of keys and of values, in the tree's order.
    pub of_rows: [Vec<f32>; 2],
    /// The same of nodes, numbered as in a heap from 1 on.
    pub of_nodes: [Vec<f32>; 2],
}

struct Looked<'a> {
    forest: &'a Forest,
    beam: Beam,
}

impl Far for Looked<'_> {
    fn answer<'a>(&'a self, query: &Query, answers: &mut Answers<'a>) -> Reads {
        let Self { forest, beam } = self;
        match beam.width {
            0 => forest.read(
                query,
                forest.trees.iter().flat_map(|tree| (0..tree.rows).map(move |row| (tree, row))),
                answers,
            ),
            _ => forest.descend(query, *beam, answers),
        }
    }

    fn kept(&self) -> usize {
        let nodes: usize = self.forest.trees.iter().map(|tree| 2 * tree.rows / Cover::LEAF).sum();
        let rows: usize = self.forest.trees.iter().map(|tree| tree.rows).sum();
        Reads::rows(rows + nodes).bytes(self.forest.d)
    }
}

impl Forest {
    /// Looked up with that beam.
    pub fn cover(&self, beam: Beam) -> impl Far + '_ {
        Looked { forest: self, beam }
    }

    fn read<'a>(
        &'a self,
        query: &Query,
        rows: impl Iterator<Item = (&'a Tree, usize)>,
        answers: &mut Answers<'a>,
    ) -> Reads {
        let mut n = 0;
        for (tree, row) in rows {
            let [key, value] = self.item(&tree.of_rows, row);
            answers.push(query.scores(key), value);
            n += 1;
        }
        Reads::rows(n)
    }

    fn item<'a>(&self, [keys, values]: &'a [Vec<f32>; 2], i: usize) -> [&'a [f32]; 2] {
        [keys, values].map(|x| &x[i * self.d..(i + 1) * self.d])
    }

    fn descend<'a>(&'a self, query: &Query, beam: Beam, answers: &mut Answers<'a>) -> Reads {
        let group = query.near.len();
        let mut size = beam.size;
        let first = |tree: &Tree| tree.rows / size;
        let nodes = |tree| (first(tree)..2 * first(tree)).map(move |node| (tree, node));
        let mut candidates: Vec<(&Tree, usize)> = self.trees.iter().flat_map(nodes).collect();
        // Log mass of what is near and of what has answered.
        let mut answered = query.near.clone();
        let mut reads = Reads::default();
        loop {
            let rows = (size as f32).ln();
            let found: Vec<_> = candidates.iter().map(|(tree, node)| self.item(&tree.of_nodes, *node)).collect();
            let scores: Vec<f32> = found.iter().flat_map(|[key, _]| query.scores(key)).map(|s| s + rows).collect();
            let mut attention = vec![0.0; found.len()];
            for (r, answered) in answered.iter().enumerate() {
                let of_head = scores.iter().skip(r).step_by(group).copied();
                let all = maths::log_sum_exp(of_head.clone().chain([*answered]));
                attention.iter_mut().zip(of_head).for_each(|(sum, s)| *sum += (s - all).exp());
            }
            let expanded = maths::largest(&attention, beam.width);
            let mut is_expanded = vec![false; found.len()];
            expanded.iter().for_each(|i| is_expanded[*i] = true);
            for (i, [_, value]) in found.iter().enumerate().filter(|(i, _)| !is_expanded[*i]) {
                let scores = &scores[i * group..(i + 1) * group];
                for (answered, s) in answered.iter_mut().zip(scores) {
                    *answered = maths::log_sum_exp([*answered, *s].into_iter());
                }
                answers.push(scores.iter().copied(), value);
            }
            let values = found.len() - expanded.len();
            reads += Reads { keys: found.len(), values, anchors: found.len(), rows: 0 };
            let expanded: Vec<_> = expanded.into_iter().map(|i| candidates[i]).collect();
            if size == Cover::LEAF {
                let rows = expanded.into_iter().flat_map(|(tree, node)| {
                    let first = (node - tree.rows / Cover::LEAF) * Cover::LEAF;
                    (first..first + Cover::LEAF).map(move |row| (tree, row))
                });
                reads += self.read(query, rows, answers);
                return reads;
            }
            size /= 2;
            candidates =
                expanded.into_iter().flat_map(|(tree, node)| [(tree, 2 * node), (tree, 2 * node + 1)]).collect();
            candidates.extend(self.trees.iter().filter(|tree| tree.rows == size).map(|tree| (tree, 1)));
        }
    }
}

/// Positions, counted behind the far past, of the queries that are kept: of those that trees are built from, and of those that errors
/// are measured with.
pub(super) fn kept(past: &Past) -> [Vec<usize>; 2] {
    let all = past.local().saturating_sub(Cover::SPAN)..past.local();
    let kind = |local: usize| Cover::kept(past.first + local);
    [
        all.clone().filter(|local| matches!(kind(*local), Some(Kept::Metric(_)))).collect(),
        all.filter(|local| matches!(kind(*local), Some(Kept::Trials(_)))).collect(),
    ]
}

/// Of the heads of one layer: built by the references of the kernels that build them on a device.
pub(super) fn forests(dims: AttentionDims, layer: &[Past]) -> Vec<Forest> {
    let d = dims.head_dim;
    let far = layer[0].rows();
    let mut forests: Vec<_> = layer.iter().map(|_| Forest { d, trees: Vec::new() }).collect();
    let sizes = (0..usize::BITS).rev().map(|bit| far & 1 << bit).filter(|size| *size > 0);
    let mut first = 0;
    for rows in sizes {
        let mut nursery = Nursery::new(dims, layer, first, rows);
        nursery.build();
        forests.iter_mut().enumerate().for_each(|(g, forest)| forest.trees.push(nursery.tree(g)));
        first += rows;
    }
    forests
}

/// Where one tree of each head of a layer grows: in pages, as on a device.
struct Nursery {
    dims: AttentionDims,
    scale: f32,
    rows: usize,
    cover: Cover,
    memory: Memory,
    host: Vec<Host>,
    tensors: CoverTensors,
    kv: [Tensor; 2],
    /// First pages of kept queries, of the tree's rows and of its nodes; the rows that they come from lie before.
    pages: [usize; 3],
}

impl Nursery {
    /// For the rows from `first` on.
    fn new(dims: AttentionDims, layer: &[Past], first: usize, rows: usize) -> Self {
        let d = dims.head_dim;
        let of_nodes = (2 * rows / Cover::LEAF).div_ceil(PAGE);
        let queries = rows / PAGE;
        let pages = [queries, queries + Cover::POINTS / (2 * PAGE), 2 * queries + Cover::POINTS / (2 * PAGE)];
        let all = pages[2] + of_nodes;
        let mut memory = Memory::new(Capacity {
            tokens: 1,
            outputs: 1,
            sequences: 1,
            context: rows,
            pages: all,
            kv: Element::F32,
            binding: usize::MAX,
        });
        let m = &mut memory;
        let cover = Cover {
            rows,
            gap: f32::MAX,
            lanes: 8,
            heads: dims.kv_heads,
            kv_heads: dims.kv_heads,
            group: dims.heads / dims.kv_heads,
        };
        let tensors = CoverTensors::declare(dims.kv_heads, cover, m);
        let kv = ["k_pages", "v_pages"].map(|name| m.tensor(name, Element::F32, all * dims.kv_heads * PAGE, d));
        let host = memory.tensors().iter().map(|t| t.host().expect("memory for a tree")).collect();
        let mut nursery = Self { dims, scale: layer[0].scores.scale, rows, cover, memory, host, tensors, kv, pages };
        nursery.fill(layer, first);
        nursery
    }

    fn fill(&mut self, layer: &[Past], first: usize) {
        let ids = |from: usize, n: usize| (from..from + n).map(|i| i as u32).collect::<Vec<_>>();
        let (tensors, n_queries) = (self.tensors, Cover::POINTS / (2 * PAGE));
        self.host[tensors.source.0] = Host::U32(ids(0, self.rows));
        self.host[tensors.queries.0] = Host::U32(ids(self.pages[0], n_queries));
        let of_tree = self.host[tensors.pages.0].u32().len();
        self.host[tensors.pages.0] = Host::U32(ids(self.pages[1], of_tree));
        for (g, past) in layer.iter().enumerate() {
            for row in 0..self.rows {
                self.set(0, self.base(0, g, row), past.key(first + row));
                self.set(1, self.base(0, g, row), past.value(first + row));
            }
            let [kept, _] = kept(past);
            for p in 0..Cover::POINTS {
                let (local, r) = (kept[p % kept.len()], p % past.group);
                let at = self.base(self.pages[0] + p / (2 * PAGE), g, p % PAGE);
                self.set(p / PAGE % 2, at, &past.query(local)[r * past.d..(r + 1) * past.d]);
            }
        }
    }

    /// Where an item of a head begins that lies in the pages from `page` on.
    fn base(&self, page: usize, g: usize, i: usize) -> usize {
        (((page + i / PAGE) * self.dims.kv_heads + g) * PAGE + i % PAGE) * self.dims.head_dim
    }

    fn set(&mut self, part: usize, at: usize, x: &[f32]) {
        self.host[self.kv[part].0].f32_mut()[at..at + x.len()].copy_from_slice(x);
    }

    fn build(&mut self) {
        let (dims, cover, scale, tensors, kv) = (self.dims, self.cover, self.scale, self.tensors, self.kv);
        let record = |record: &dyn Fn(&mut Recorder)| Program::record(&self.memory, Mode::Prefill, record);
        let points = record(&|r| r.aoc_points(dims, cover, scale, tensors, kv));
        let split = record(&|r| r.aoc_split(dims.kv_heads, cover, tensors));
        let gather = record(&|r| r.aoc_gather(dims, cover, tensors, kv));
        let nodes = record(&|r| r.aoc_nodes(dims, tensors, kv));
        for unit in aoc::units(self.rows, false) {
            let (program, segment) = match unit {
                Unit::Points => (&points, 0),
                Unit::Rank => continue,
                Unit::Split(rows) => (&split, rows),
                Unit::Gather => (&gather, 0),
                Unit::Nodes(nodes_of_depth) => (&nodes, nodes_of_depth),
            };
            let step = Step { rows: self.rows as u32, segment: segment as u32, ..Step::default() };
            program.run_reference(&step, &mut self.host);
        }
    }

    fn tree(&self, g: usize) -> Tree {
        let d = self.dims.head_dim;
        let items = |page: usize, n: usize| {
            self.kv.map(|t| {
                let item = |i: usize| &self.host[t.0].f32()[self.base(page, g, i)..][..d];
                // As a device would store them.
                (0..n).flat_map(item).map(|x| half::f16::from_f32(*x).to_f32()).collect::<Vec<_>>()
            })
        };
        let nodes = items(self.pages[2], 2 * self.rows / Cover::LEAF);
        Tree { rows: self.rows, of_rows: items(self.pages[1], self.rows), of_nodes: nodes }
    }
}
