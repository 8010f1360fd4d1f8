//! Pages of earlier sequences by the tokens they hold, so that a prefix is computed once.
//!
//! A tree of full pages: a page is found by the page before it and its own tokens, all of which are compared. A page holds keys
//! and values of one way to attend: whoever shares a cache attends alike.

use std::collections::{BTreeSet, HashMap};

use crate::kv::{PAGE, PagePool, PageTable};

/// Pages of computed prefixes, each kept until its place is needed; the least recently used go first.
#[derive(Debug)]
pub struct PrefixCache {
    pool: PagePool,
    /// By the node before (`ROOT` for first pages) and the tokens of the page.
    children: HashMap<(usize, [u32; PAGE]), usize>,
    nodes: Vec<Node>,
    /// Nodes that hold no page.
    unused: Vec<usize>,
    /// Nodes without children, in order of their last use.
    leaves: BTreeSet<(u64, usize)>,
    now: u64,
    counts: PrefixCounts,
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PrefixCounts {
    /// Tokens that were looked for.
    pub wanted: u64,
    /// Tokens that were found.
    pub found: u64,
    /// Pages given back to make room.
    pub evicted: u64,
}

#[derive(Debug)]
struct Node {
    page: u32,
    parent: usize,
    tokens: [u32; PAGE],
    children: usize,
    used: u64,
}

const ROOT: usize = usize::MAX;

impl PrefixCache {
    /// An empty cache of pages of `pool`.
    pub fn new(pool: &PagePool) -> Self {
        Self {
            pool: pool.clone(),
            children: HashMap::new(),
            nodes: Vec::new(),
            unused: Vec::new(),
            leaves: BTreeSet::new(),
            now: 0,
            counts: PrefixCounts::default(),
        }
    }

    /// Pages kept.
    pub fn len(&self) -> usize {
        self.nodes.len() - self.unused.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What it has done.
    pub fn counts(&self) -> PrefixCounts {
        self.counts
    }

    /// How many of `tokens`, from the first on, are in kept pages.
    pub fn covers(&self, tokens: &[u32]) -> usize {
        self.path(tokens).len() * PAGE
    }

    /// How many of the pages that `tokens` are kept in some table refers to.
    pub fn in_use(&self, tokens: &[u32]) -> usize {
        self.path(tokens).iter().filter(|node| !self.pool.is_idle(self.nodes[**node].page)).count()
    }

    /// A table of the longest kept prefix of `tokens`.
    pub fn find(&mut self, tokens: &[u32]) -> PageTable {
        let path = self.path(tokens);
        self.counts.wanted += tokens.len() as u64;
        self.counts.found += (path.len() * PAGE) as u64;
        self.touch(&path);
        PageTable::sharing(&self.pool, path.iter().map(|node| self.nodes[*node].page).collect())
    }

    /// Keeps the full pages of `table`, whose positions hold `tokens`, but those whose tokens are kept already.
    pub fn keep(&mut self, tokens: &[u32], table: &PageTable) {
        let n = tokens.len().min(table.len()) / PAGE;
        let mut path = self.path(&tokens[..n * PAGE]);
        let (pages, _) = tokens.as_chunks::<PAGE>();
        for (tokens, page) in pages[..n].iter().zip(table.pages()).skip(path.len()) {
            let parent = path.last().copied().unwrap_or(ROOT);
            self.pool.keep(*page);
            let node = Node { page: *page, parent, tokens: *tokens, children: 0, used: self.now };
            let i = match self.unused.pop() {
                Some(i) => {
                    self.nodes[i] = node;
                    i
                }
                None => {
                    self.nodes.push(node);
                    self.nodes.len() - 1
                }
            };
            if parent != ROOT {
                self.leaves.remove(&(self.nodes[parent].used, parent));
                self.nodes[parent].children += 1;
            }
            self.children.insert((parent, *tokens), i);
            self.leaves.insert((self.now, i));
            path.push(i);
        }
        self.touch(&path);
    }

    /// Gives back up to `pages` pages that no table refers to; how many it were. A page goes after all that follow it.
    pub fn evict(&mut self, pages: usize) -> usize {
        let (mut evicted, mut after) = (0, None);
        while evicted < pages {
            // Pages in use stay: what comes before them was tried.
            let leaf = match after {
                None => self.leaves.first(),
                Some(leaf) => self.leaves.range((std::ops::Bound::Excluded(leaf), std::ops::Bound::Unbounded)).next(),
            };
            let Some(&leaf) = leaf else { break };
            let Node { page, parent, tokens, .. } = self.nodes[leaf.1];
            if !self.pool.is_idle(page) {
                after = Some(leaf);
                continue;
            }
            self.pool.forget(page);
            self.leaves.remove(&leaf);
            self.children.remove(&(parent, tokens));
            self.unused.push(leaf.1);
            if parent != ROOT {
                let before = &mut self.nodes[parent];
                before.children -= 1;
                if before.children == 0 {
                    // It was used when this was, or later: it is not before what was tried.
                    self.leaves.insert((before.used, parent));
                }
            }
            evicted += 1;
        }
        self.counts.evicted += evicted as u64;
        evicted
    }

    /// Nodes of the kept pages of `tokens`, first to last.
    fn path(&self, tokens: &[u32]) -> Vec<usize> {
        let (pages, _) = tokens.as_chunks::<PAGE>();
        let mut before = ROOT;
        let next = pages.iter().map_while(|tokens| {
            before = *self.children.get(&(before, *tokens))?;
            Some(before)
        });
        next.collect()
    }

    /// All of `path` is used now.
    fn touch(&mut self, path: &[usize]) {
        self.now += 1;
        for &i in path {
            let node = &mut self.nodes[i];
            if self.leaves.remove(&(node.used, i)) {
                self.leaves.insert((self.now, i));
            }
            node.used = self.now;
        }
    }
}

impl Drop for PrefixCache {
    fn drop(&mut self) {
        self.children.values().for_each(|i| self.pool.forget(self.nodes[*i].page));
    }
}
