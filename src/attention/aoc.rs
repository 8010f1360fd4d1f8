//! Anchored attention over the far past, the host's side: what of a sequence lies in which trees, and what becomes a tree next.
//!
//! Positions behind the near past *graduate* by chunks. A chunk becomes a small tree; four trees of one size become one, as in a
//! log-structured merge (O'Neil et al. 1996), so that each row is moved O(log n) times.

use std::sync::Arc;

use super::gate;
use crate::error::{Error, Result};
use crate::kernels::{Cover, Kept};
use crate::kv::{PAGE, PagePool, PageTable, Pages};

/// How much a session reads of its far past.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AocOptions {
    /// Positions before a query that it reads exactly, at least.
    pub local: usize,
    /// Rows of the far past, anchors and rows of leaves, that a query reads, about: the less of each tree, the more there are. Where this
    /// is no less than the far past has, it reads all rows.
    pub budget: usize,
    /// How far the answers of a layer's key and value head may be from those of all rows, the mean square of the relative error of a few
    /// tokens; a head whose share of the budget does not bring it there reads all rows. 0: the session has no far past, infinity:
    /// nothing is measured, and all heads have one width.
    pub gate: f32,
}

impl Default for AocOptions {
    fn default() -> Self {
        Self { local: 512, budget: 512, gate: 1.0 }
    }
}

impl AocOptions {
    /// An error where no session could run so.
    pub fn check(&self) -> Result<()> {
        if self.budget == 0 {
            return Err(Error::request("AOC budget", "at least 1 row", 0));
        }
        if self.gate.is_nan() || self.gate < 0.0 {
            return Err(Error::request("AOC gate", "a number, at least 0", self.gate));
        }
        Ok(())
    }
}

/// Rows of the smallest tree.
pub const CHUNK: usize = 512;

/// Trees of one size that become one.
const MERGED: usize = 4;

/// Widths are tried again when the far past has grown by this part.
const GROWTH: usize = 2;

/// Rows of the largest tree, for contexts of so many positions: so many trees are looked at together.
pub fn largest(context: usize) -> usize {
    let mut rows = CHUNK * MERGED;
    while context / rows > Cover::MOST / 2 {
        rows *= MERGED;
    }
    rows
}

/// Rows and nodes of one tree.
#[derive(Debug)]
struct Tree {
    /// CHUNK times a power of MERGED.
    rows: usize,
    /// Those of rows, then those of nodes.
    pages: Pages,
}

/// The far past of a session: the positions behind the first page that lie in trees.
#[derive(Debug)]
pub struct Far {
    options: AocOptions,
    /// Of falling sizes, in order of position.
    trees: Vec<Arc<Tree>>,
    /// Where queries are kept.
    queries: Option<Pages>,
    /// From which position on they were.
    since: usize,
    building: Option<Building>,
    known: Known,
    /// Rows when widths were tried.
    tried: usize,
    /// Which of its [trials](Far::trials) comes next.
    pub trial: usize,
}

/// A tree to build: a chunk, with all rows of the trees that it replaces.
#[derive(Clone, Copy, Debug)]
pub struct Next {
    rows: usize,
    /// Trees, from the last.
    merges: usize,
    /// Pages that it takes.
    pub pages: usize,
}

/// A tree under way.
#[derive(Debug)]
pub struct Building {
    /// Page slot of each row.
    pub source: Vec<u32>,
    /// How far it is.
    pub at: Part,
    tree: Tree,
    merges: usize,
    is_largest: bool,
}

/// What of a tree is built next: of one layer after the other, each of its units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// The layer.
    pub layer: usize,
    /// Of its [`units`].
    pub unit: usize,
}

/// A unit of work on one layer of a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// Coordinates of the rows.
    Points,
    /// The effective rank of their keys.
    Rank,
    /// Bisection of segments of so many rows.
    Split(usize),
    /// Rows to their places.
    Gather,
    /// Anchors of the depth of so many nodes.
    Nodes(usize),
}

/// What each layer of a tree of `rows` rows takes, in order; its rank only where that is of use.
pub fn units(rows: usize, is_ranked: bool) -> Vec<Unit> {
    let halves =
        |n: usize, least: usize| std::iter::successors(Some(n), |n| Some(n / 2)).take_while(move |n| *n >= least);
    let splits = halves(rows, 2 * Cover::LEAF).map(Unit::Split);
    let nodes = halves(rows / Cover::LEAF, 1).map(Unit::Nodes);
    let points = [Unit::Points, Unit::Rank].into_iter().take(1 + usize::from(is_ranked));
    points.chain(splits).chain([Unit::Gather]).chain(nodes).collect()
}

/// Rows of the nodes that are looked at first of trees of so many rows, the largest first: as few as make no more nodes than an eighth
/// of the budget, or one of each tree of the largest size.
pub fn first_size(trees: impl Iterator<Item = usize> + Clone, budget: usize) -> usize {
    let most = (budget / 8).clamp(16, Cover::MOST);
    let largest = trees.clone().next().unwrap_or(0);
    let sizes = std::iter::successors(Some(Cover::LEAF), |size| Some(2 * size));
    let mut sizes = sizes.take_while(|size| *size <= largest);
    let nodes = |size: usize| trees.clone().map(|rows| rows / size).sum::<usize>();
    sizes.find(|size| nodes(*size) <= most).unwrap_or(largest.max(Cover::LEAF))
}

impl Far {
    /// None yet.
    pub fn new(options: AocOptions) -> Self {
        let (trees, known) = Default::default();
        Self { options, trees, queries: None, since: 0, building: None, known, tried: 0, trial: 0 }
    }

    /// The same trees for a fork, which keeps queries of its own.
    pub fn fork(&self) -> Self {
        let (trees, known) = (self.trees.clone(), self.known.clone());
        Self { trees, known, tried: self.tried, ..Self::new(self.options) }
    }

    /// Rows in trees.
    pub fn rows(&self) -> usize {
        self.trees.iter().map(|tree| tree.rows).sum()
    }

    /// The first position behind those in trees.
    pub fn end(&self) -> usize {
        PAGE + self.rows()
    }

    /// Forgets what `table` has forgotten.
    pub fn follow(&mut self, table: &PageTable) {
        if table.near() < self.end() {
            *self = Self { queries: self.queries.take(), ..Self::new(self.options) };
        }
        self.since = self.since.min(table.len());
        if table.len() < self.end() + CHUNK {
            self.building = None;
        }
    }

    /// Pages that it will take before its next step.
    pub fn pages_needed(&self, cover: Cover) -> usize {
        if self.queries.is_none() { Cover::kept_pages(cover.group) } else { 0 }
    }

    /// Takes them. The session has computed `len` positions.
    pub fn prepare(&mut self, cover: Cover, pool: &PagePool, len: usize) -> Result<()> {
        if self.queries.is_none() {
            self.queries = Some(pool.take(Cover::kept_pages(cover.group))?);
            self.since = len;
        }
        Ok(())
    }

    /// Whether queries of all the last positions of `table` are kept.
    fn has_queries(&self, table: &PageTable) -> bool {
        table.len().saturating_sub(self.since) >= Cover::SPAN
    }

    /// The next tree, when enough positions have left the near past.
    pub fn next(&self, table: &PageTable, largest: usize) -> Option<Next> {
        if self.options.gate == 0.0
            || self.building.is_some()
            || !self.has_queries(table)
            || table.len() < self.end() + self.options.local + CHUNK
        {
            return None;
        }
        let (mut rows, mut merges) = (CHUNK, 0);
        while rows * MERGED <= largest {
            let mut smallest = self.trees.iter().rev().skip(merges).take(MERGED - 1);
            if smallest.len() < MERGED - 1 || !smallest.all(|tree| tree.rows == rows) {
                break;
            }
            merges += MERGED - 1;
            rows *= MERGED;
        }
        Some(Next { rows, merges, pages: rows / PAGE + (2 * rows / Cover::LEAF).div_ceil(PAGE) })
    }

    /// Begins it.
    pub fn begin(&mut self, next: Next, pool: &PagePool, table: &PageTable) -> Result<()> {
        let Next { rows, merges, pages } = next;
        let pages = pool.take(pages)?;
        let merged = &self.trees[self.trees.len() - merges..];
        let slots = |page: &u32| (0..PAGE as u32).map(move |i| page * PAGE as u32 + i).collect::<Vec<_>>();
        let mut source: Vec<u32> =
            merged.iter().flat_map(|tree| tree.pages[..tree.rows / PAGE].iter()).flat_map(slots).collect();
        source.extend((self.end()..self.end() + CHUNK).map(|position| table.slot(position)));
        let is_largest = self.trees.iter().all(|tree| tree.rows <= rows);
        self.building = Some(Building { source, at: Part::default(), tree: Tree { rows, pages }, merges, is_largest });
        Ok(())
    }

    /// Whether a tree is under way.
    pub fn is_building(&self) -> bool {
        self.building.is_some()
    }

    /// The tree under way.
    pub fn building(&mut self) -> Option<&mut Building> {
        self.building.as_mut()
    }

    /// Pages of the queries that trees are built for.
    pub fn metric(&self) -> &[u32] {
        self.queries.as_ref().map_or(&[], |pages| &pages[..Cover::POINTS / (2 * PAGE)])
    }

    /// The tree under way is there for all layers: from now on it is read, and not what it was built of.
    pub fn finish(&mut self, table: &mut PageTable) {
        if let Some(Building { tree, merges, .. }) = self.building.take() {
            self.trees.truncate(self.trees.len() - merges);
            self.trees.push(Arc::new(tree));
            table.give_back(self.end());
            self.known.widths = self.widths();
        }
    }

    /// Whether widths are to be tried: what it has grown since they were may be harder.
    pub fn is_due(&self, table: &PageTable) -> bool {
        let rows = self.rows();
        self.options.gate.is_finite()
            && rows > self.options.budget
            && rows >= self.tried + self.tried.div_ceil(GROWTH)
            && self.has_queries(table)
    }

    /// Positions whose queries widths are tried with, at most `most` at once: those of each trial in every layer.
    pub fn trials(&self, table: &PageTable, most: usize) -> Vec<Vec<usize>> {
        let is_kept = |position: &usize| matches!(Cover::kept(*position), Some(Kept::Trials(_)));
        let positions: Vec<_> = (table.len() - Cover::SPAN..table.len()).filter(is_kept).collect();
        positions.chunks(most).map(<[usize]>::to_vec).collect()
    }

    /// Tells it from others, once it is prepared for a step.
    pub fn id(&self) -> u32 {
        self.queries.as_ref().map_or(u32::MAX, |pages| pages[0])
    }

    /// What is known of each head of each layer without a window.
    pub fn heads(&self) -> Vec<Head> {
        let Known { errors, widths, ranks } = &self.known;
        let of_head = |((sums, width), rank): ((&[Sums], &usize), &f32)| {
            let [_, alone, answers, _] = sums[0];
            Head {
                rank: *rank,
                errors: std::array::from_fn(|i| error(&sums[i])),
                width: *width,
                alone: alone / answers,
            }
        };
        errors.chunks(Cover::TRIALS.len()).zip(widths).zip(ranks).map(of_head).collect()
    }

    /// Chooses widths by what was measured, with what is remembered of before, for each width that is tried of each head.
    pub fn learn(&mut self, errors: &[Sums], ranks: Vec<f32>) {
        let known = &mut self.known;
        known.errors.resize(errors.len(), Sums::default());
        for (old, new) in known.errors.iter_mut().zip(errors) {
            *old = [0, 1, 2, 3].map(|i| 0.75 * old[i] + new[i]);
        }
        known.ranks = ranks;
        self.known.widths = self.widths();
        (self.tried, self.trial) = (self.rows(), 0);
    }

    /// Adds what a step reads: to `trees`, and to `lists` what `cover` says, and pages. Returns the sequence's entry, whose first tree is counted
    /// from the first of `trees`.
    pub fn list(&self, cover: Cover, trees: &mut Vec<[u32; 4]>, lists: &mut Vec<u32>) -> [u32; 4] {
        let (first, list) = (trees.len(), lists.len());
        // Before anything is measured all rows are read.
        match self.options.gate.is_finite() {
            _ if self.rows() <= self.options.budget => lists.extend(std::iter::repeat_n(0, cover.heads)),
            false => lists.extend(std::iter::repeat_n(self.width() as u32, cover.heads)),
            true if self.known.errors.is_empty() => lists.extend(std::iter::repeat_n(0, cover.heads)),
            true => lists.extend(self.known.widths.iter().map(|width| *width as u32)),
        }
        for width in [0].into_iter().chain(Cover::TRIALS) {
            lists.extend(std::iter::repeat_n(width as u32, cover.kv_heads));
        }
        lists.extend(self.queries.iter().flat_map(|pages| pages.iter()));
        for tree in &self.trees {
            let pages = lists.len();
            lists.extend(tree.pages.iter());
            trees.push([tree.rows, pages, pages + tree.rows / PAGE, 0].map(|n| n as u32));
        }
        [first, self.trees.len(), self.first_size(), list].map(|n| n as u32)
    }

    /// Of each head, by what was measured: within the budget on average, and 0 where the error is above the gate with the widest.
    fn widths(&self) -> Vec<usize> {
        let tried = || Cover::TRIALS.iter().copied();
        let costs: Vec<_> = tried().map(|width| self.cost(width)).chain([self.rows()]).collect();
        // All rows are read without an error.
        let of_head = |sums: &[Sums]| sums.iter().map(|sums| f64::from(error(sums))).chain([0.0]).collect();
        let errors: Vec<Vec<f64>> = self.known.errors.chunks(Cover::TRIALS.len()).map(of_head).collect();
        let chosen = gate::choose(&errors, &costs, self.options.budget).into_iter().zip(&errors);
        let gate = f64::from(self.options.gate);
        chosen.map(|(i, errors)| if errors[i] <= gate { tried().nth(i).unwrap_or(0) } else { 0 }).collect()
    }

    /// Rows that a query reads, anchors among them, on average over the heads.
    pub fn reads(&self) -> f64 {
        let reads = |width: usize| if width == 0 { self.rows() } else { self.cost(width) };
        match &self.known.widths[..] {
            _ if self.rows() <= self.options.budget => self.rows() as f64,
            [] if self.options.gate.is_finite() => self.rows() as f64,
            [] => self.cost(self.width()) as f64,
            widths => widths.iter().map(|width| reads(*width)).sum::<usize>() as f64 / widths.len() as f64,
        }
    }

    /// What all heads have when none is measured.
    fn width(&self) -> usize {
        (1..=Cover::WIDEST).rev().find(|width| self.cost(*width) <= self.options.budget).unwrap_or(1)
    }

    /// Rows that a query reads with a width: the first nodes, two for each that is expanded of every depth below them, and the rows of
    /// the leaves.
    fn cost(&self, width: usize) -> usize {
        let size = self.first_size();
        self.nodes(size) + width * (2 * (size / Cover::LEAF).ilog2() as usize + Cover::LEAF)
    }

    fn first_size(&self) -> usize {
        first_size(self.trees.iter().map(|tree| tree.rows), self.options.budget)
    }

    /// Nodes of so many rows.
    fn nodes(&self, size: usize) -> usize {
        self.trees.iter().map(|tree| tree.rows / size).sum()
    }
}

/// What was measured of the heads of all layers; nothing yet where empty.
#[derive(Clone, Debug, Default)]
struct Known {
    /// For each width that is tried of each head.
    errors: Vec<Sums>,
    /// Of each head; 0: it reads all rows.
    widths: Vec<usize>,
    /// Effective rank of the keys of each head.
    ranks: Vec<f32>,
}

/// What is known of a key and value head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Head {
    /// r_Σ: effective rank of its keys in the metric of its queries.
    pub rank: f32,
    /// With each of [`Cover::TRIALS`], how far answers are from those of all rows: the mean square of the error relative to the answer.
    pub errors: [f32; Cover::TRIALS.len()],
    /// Nodes of a depth that are expanded. 0: it reads all rows.
    pub width: usize,
    /// Share of the answers that are one row's value (A0).
    pub alone: f32,
}

/// What is measured of a head with some width: squares of relative errors, summed up, answers that are one row's value, answers.
pub type Sums = [f32; 4];

/// The mean.
fn error([sum, _, answers, _]: &Sums) -> f32 {
    sum / answers.max(1.0)
}

impl Building {
    /// The pages of its rows, then of its nodes.
    pub fn pages(&self) -> &[u32] {
        &self.tree.pages
    }

    /// Its rows.
    pub fn rows(&self) -> usize {
        self.tree.rows
    }

    /// What each layer takes. The rank is that of the largest tree.
    pub fn units(&self) -> Vec<Unit> {
        units(self.rows(), self.is_largest)
    }
}
