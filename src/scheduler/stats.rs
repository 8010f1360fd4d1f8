//! What a scheduler has done and does now, to be shown to those who watch it.

use std::time::Duration;

use crate::prefix::PrefixCounts;
use crate::speculation::DraftCounts;

use super::Reason;

/// Figures of a scheduler.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Requests that are computed now.
    pub running: usize,
    /// Requests that wait, those among them that had begun before.
    pub waiting: usize,
    /// Pages of the pool.
    pub pages: usize,
    /// Of which no running request holds so many.
    pub free_pages: usize,
    /// Pages kept of earlier requests.
    pub kept_pages: usize,
    /// What was found in those.
    pub prefixes: PrefixCounts,
    /// What drafts have come to.
    pub drafts: DraftCounts,
    /// Steps run.
    pub steps: u64,
    /// Prompt tokens of the requests that were begun.
    pub prompt_tokens: u64,
    /// Tokens drawn.
    pub drawn_tokens: u64,
    /// Requests that lost their pages to others for a while.
    pub preemptions: u64,
    /// Requests that ended, by [`Reason`] as a number.
    pub finished: [u64; Reason::ALL.len()],
    /// Requests that failed.
    pub failed: u64,
    /// From a request's arrival to its first token.
    pub first_token: Histogram,
    /// From one token to the next.
    pub next_token: Histogram,
    /// From a request's arrival to its end.
    pub request: Histogram,
}

/// How many durations were no longer than each of [`Histogram::BOUNDS`].
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Those no longer than each bound.
    pub counts: [u64; Self::BOUNDS.len()],
    /// All of them.
    pub count: u64,
    /// All together, in seconds.
    pub sum: f64,
}

impl Histogram {
    /// Seconds.
    pub const BOUNDS: [f64; 16] =
        [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

    pub(super) fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (count, bound) in self.counts.iter_mut().zip(Self::BOUNDS) {
            *count += u64::from(seconds <= bound);
        }
        self.count += 1;
        self.sum += seconds;
    }
}
