//! Prefixes that sessions share: [`Engine::keep`] after a session has computed something, [`Engine::recall`] before another does.

use super::Engine;
use crate::error::{Error, Result};
use crate::kv::PAGE;
use crate::prefix::PrefixCounts;
use crate::session::Session;

impl Engine {
    /// Takes for computed what earlier sessions have computed of the tokens of `session`, of which nothing is computed yet: full
    /// pages, and never the last token. Returns how many tokens that are. The logits are the same, bit for bit.
    pub fn recall(&mut self, session: &mut Session) -> usize {
        let tokens = session.tokens();
        let all_but_last = &tokens[..tokens.len().saturating_sub(1)];
        if session.table.is_empty() {
            session.table = self.prefixes.find(all_but_last);
        }
        session.table.len()
    }

    /// How many of `tokens` a session that has these would recall.
    pub fn kept(&self, tokens: &[u32]) -> usize {
        self.prefixes.covers(&tokens[..tokens.len().saturating_sub(1)])
    }

    /// Free pages that a session with these tokens and one more would take.
    pub fn pages_for(&self, tokens: &[u32]) -> usize {
        (tokens.len() + 1).div_ceil(PAGE) - self.prefixes.in_use(&tokens[..tokens.len().saturating_sub(1)])
    }

    /// Keeps the full pages of what `session` has computed, for sessions to come, until their place is needed. Once it has given a page of
    /// its past back, what it computes is not what others would.
    pub fn keep(&mut self, session: &Session) {
        if session.table.near() == PAGE {
            self.prefixes.keep(session.tokens(), &session.table);
        }
    }

    /// Pages that are kept.
    pub fn kept_pages(&self) -> usize {
        self.prefixes.len()
    }

    /// What was recalled so far.
    pub fn prefix_counts(&self) -> PrefixCounts {
        self.prefixes.counts()
    }

    /// Frees `needed` pages, of kept ones where it must.
    pub(super) fn make_room(&mut self, needed: usize) -> Result<()> {
        let refused = |free| Err(Error::OutOfPages { needed, free });
        let most = self.free_pages();
        if needed > most {
            return refused(most);
        }
        self.prefixes.evict(needed.saturating_sub(self.pool.n_free()));
        // A kept page may be idle while a session has one that follows it.
        let free = self.pool.n_free();
        if needed > free { refused(free) } else { Ok(()) }
    }
}
