//! Anchored attention over the far past, the host's side: what of a sequence lies in which trees, and what becomes a tree next.
//!
//! Positions behind the near past *graduate* by chunks. A chunk becomes a small tree; four trees of one size become one, as in a
//! log-structured merge (O'Neil et al. 1996), so that each row is moved O(log n) times.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::kernels::Cover;
use crate::kv::{PAGE, PagePool, PageTable, Pages};

/// How much a session reads of its far past.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AocOptions {
    /// Positions before a query that it reads exactly, at least.
    pub local: usize,
    /// Rows of the far past, anchors and rows of leaves, that a query reads, about. Where this is no less than the far past has, it
    /// reads all rows.
    pub budget: usize,
}

impl Default for AocOptions {
    fn default() -> Self {
        Self { local: 512, budget: 512 }
    }
}

impl AocOptions {
    /// An error where no session could run so.
    pub fn check(&self) -> Result<()> {
        match self.budget {
            0 => Err(Error::request("AOC budget", "at least 1 row", 0)),
            _ => Ok(()),
        }
    }

    /// Nodes expanded of each depth: of some thousand rows it is four depths that are read, each of two nodes for one, and the leaves.
    fn width(&self) -> usize {
        (self.budget / (2 * 4 + Cover::LEAF)).clamp(1, Cover::WIDEST)
    }
}

/// Rows of the smallest tree.
pub const CHUNK: usize = 512;

/// Trees of one size that become one.
const MERGED: usize = 4;

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
}

/// What of a tree is built next: of one layer after the other, each of its units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Part {
    /// The layer.
    pub layer: usize,
    /// Of [`Building::units`].
    pub unit: usize,
}

/// A unit of work on one layer of a tree.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unit {
    /// Coordinates of the rows.
    Points,
    /// Bisection of segments of so many rows.
    Split(usize),
    /// Rows to their places.
    Gather,
    /// Anchors of the depth of so many nodes.
    Nodes(usize),
}

impl Far {
    /// None yet.
    pub fn new(options: AocOptions) -> Self {
        Self { options, trees: Vec::new(), queries: None, since: 0, building: None }
    }

    /// The same trees for a fork, which keeps queries of its own.
    pub fn fork(&self) -> Self {
        Self { trees: self.trees.clone(), ..Self::new(self.options) }
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
        if self.building.as_ref().is_some_and(|_| table.len() < self.end() + CHUNK) {
            self.building = None;
        }
    }

    /// Pages that it will take before its next step.
    pub fn pages_needed(&self) -> usize {
        if self.queries.is_none() { KEPT } else { 0 }
    }

    /// Takes them. The session has computed `len` positions.
    pub fn prepare(&mut self, pool: &PagePool, len: usize) -> Result<()> {
        if self.queries.is_none() {
            self.queries = Some(pool.take(KEPT)?);
            self.since = len;
        }
        Ok(())
    }

    /// Begins the next tree when enough positions have left the near past: with all rows of the trees that it replaces. Where the pool has
    /// no pages for it, that is for later.
    pub fn begin(&mut self, pool: &PagePool, table: &PageTable, largest: usize) {
        let kept = table.len().saturating_sub(self.since) >= Cover::QUERIES * Cover::STRIDE;
        if self.building.is_some() || !kept || table.len() < self.end() + self.options.local + CHUNK {
            return;
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
        let nodes = (2 * rows / Cover::LEAF).div_ceil(PAGE);
        let Ok(pages) = pool.take(rows / PAGE + nodes) else { return };
        let merged = &self.trees[self.trees.len() - merges..];
        let slots = |page: &u32| (0..PAGE as u32).map(move |i| page * PAGE as u32 + i).collect::<Vec<_>>();
        let mut source: Vec<u32> =
            merged.iter().flat_map(|tree| tree.pages[..tree.rows / PAGE].iter()).flat_map(slots).collect();
        source.extend((self.end()..self.end() + CHUNK).map(|position| table.slot(position)));
        self.building = Some(Building { source, at: Part::default(), tree: Tree { rows, pages }, merges });
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
        }
    }

    /// Adds what a step reads: to `trees`, and to `lists` widths and pages. Returns the sequence's entry, whose first tree is counted
    /// from the first of `trees`.
    pub fn list(&self, widths: usize, trees: &mut Vec<[u32; 4]>, lists: &mut Vec<u32>) -> [u32; 4] {
        let (first, list) = (trees.len(), lists.len());
        lists.extend(std::iter::repeat_n(self.width() as u32, widths));
        lists.extend(self.queries.iter().flat_map(|pages| pages.iter()));
        for tree in &self.trees {
            let pages = lists.len();
            lists.extend(tree.pages.iter());
            trees.push([tree.rows, pages, pages + tree.rows / PAGE, 0].map(|n| n as u32));
        }
        [first, self.trees.len(), self.first_size(), list].map(|n| n as u32)
    }

    /// 0, which reads every row, where that is within the budget.
    fn width(&self) -> usize {
        if self.rows() <= self.options.budget { 0 } else { self.options.width() }
    }

    /// Rows of the nodes that are looked at first: as few as make no more nodes than twice the width.
    fn first_size(&self) -> usize {
        let most = (2 * self.options.width()).clamp(16, Cover::MOST);
        let nodes = |size: usize| self.trees.iter().map(|tree| tree.rows / size).sum::<usize>();
        let largest = self.trees.first().map_or(0, |tree| tree.rows);
        let sizes = std::iter::successors(Some(Cover::LEAF), |size| Some(2 * size));
        sizes.take_while(|size| *size <= largest).find(|size| nodes(*size) <= most).unwrap_or(largest.max(Cover::LEAF))
    }
}

/// Pages of the queries that a session keeps.
const KEPT: usize = Cover::QUERIES / (2 * PAGE);

impl Building {
    /// The pages of its rows, then of its nodes.
    pub fn pages(&self) -> &[u32] {
        &self.tree.pages
    }

    /// Its rows.
    pub fn rows(&self) -> usize {
        self.tree.rows
    }

    /// What each layer takes, in order.
    pub fn units(&self) -> Vec<Unit> {
        let rows = self.tree.rows;
        let halves =
            |n: usize, least: usize| std::iter::successors(Some(n), |n| Some(n / 2)).take_while(move |n| *n >= least);
        let splits = halves(rows, 2 * Cover::LEAF).map(Unit::Split);
        let nodes = halves(rows / Cover::LEAF, 1).map(Unit::Nodes);
        std::iter::once(Unit::Points).chain(splits).chain([Unit::Gather]).chain(nodes).collect()
    }
}
