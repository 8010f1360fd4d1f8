//! One sequence: its tokens, its pages and how its next token is drawn.

use crate::attention::Attention;
use crate::kv::{PagePool, PageTable};
use crate::sampler::Sampling;

/// A sequence of tokens, the first of which are computed (their keys and values are in pages) and the rest pending.
#[derive(Debug)]
pub struct Session {
    tokens: Vec<u32>,
    pub(crate) table: PageTable,
    /// The last step that drew its next token, and which of the step's.
    pub(crate) drawn: (u64, u32),
    /// How tokens are drawn from now on.
    pub sampling: Sampling,
    /// What its tokens attend to.
    pub attention: Attention,
}

impl Session {
    pub(crate) fn new(pool: &PagePool) -> Self {
        let (sampling, attention) = Default::default();
        Self { tokens: Vec::new(), table: PageTable::new(pool), drawn: (0, 0), sampling, attention }
    }

    /// All tokens, computed and pending.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens that the next steps will compute.
    pub fn pending(&self) -> &[u32] {
        &self.tokens[self.table.len().min(self.tokens.len())..]
    }

    /// Appends tokens.
    pub fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Forgets the tokens from `len` on, and the pages that held them.
    pub fn rewind(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.table.truncate(len);
    }

    /// Gives its pages back; all its tokens are pending.
    pub fn release(&mut self) {
        self.table.truncate(0);
    }

    /// A copy that shares this one's full pages. Up to a page of tokens at the end is pending again.
    pub fn fork(&self) -> Self {
        Self { tokens: self.tokens.clone(), table: self.table.fork(), ..*self }
    }

    /// Makes the last token pending when none is: the logits after it are wanted once more.
    pub(crate) fn reopen(&mut self) {
        if self.pending().is_empty() && !self.tokens.is_empty() {
            self.table.truncate(self.tokens.len() - 1);
        }
    }
}
