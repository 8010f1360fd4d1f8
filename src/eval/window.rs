//! The most recent rows only, behind the sinks: Xiao et al. 2023, "Efficient streaming language models with attention sinks"
//! (arXiv:2309.17453).

use super::{Answers, Covers, Dense, Far, Method, Past, Query, Reads, each};
use crate::error::Result;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Window;

impl Method for Window {
    fn name(&self) -> &'static str {
        "window"
    }

    fn covers<'a>(&'a self, dense: &'a Dense, budget: usize) -> Result<Covers<'a>> {
        Ok(each(dense, |past| Rows::new(past, (past.rows().saturating_sub(budget)..past.rows()).collect())))
    }
}

/// Some rows of the far past; the others are forgotten.
pub(super) struct Rows<'a> {
    past: Past<'a>,
    rows: Vec<usize>,
}

impl<'a> Rows<'a> {
    pub fn new(past: Past<'a>, rows: Vec<usize>) -> Self {
        Self { past, rows }
    }
}

impl Far for Rows<'_> {
    fn answer<'a>(&'a self, query: &Query, answers: &mut Answers<'a>) -> Reads {
        self.rows.iter().for_each(|row| answers.push(query.scores(self.past.key(*row)), self.past.value(*row)));
        Reads::rows(self.rows.len())
    }

    fn kept(&self) -> usize {
        Reads::rows(self.rows.len()).bytes(self.past.d)
    }
}
