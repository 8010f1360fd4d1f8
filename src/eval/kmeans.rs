//! Flat cells of near keys: their means answer, but for the cells of most attention, whose rows are read. Hooper et al. 2025,
//! "Multipole attention" (arXiv:2506.13059). Heads that share keys and values open cells together.

use super::{Answers, Covers, Dense, Far, Method, Past, Query, Reads, each, maths};
use crate::error::Result;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Kmeans;

/// Rows of a cell on average, at least.
const CELL: usize = 16;

impl Method for Kmeans {
    fn name(&self) -> &'static str {
        "kmeans"
    }

    /// Half of the budget is for means where cells would be smaller than theirs.
    fn covers<'a>(&'a self, dense: &'a Dense, budget: usize) -> Result<Covers<'a>> {
        Ok(each(dense, |past| {
            let k = (past.rows() / CELL).min(budget / 2).max(1);
            let cells = maths::cells(past.keys, past.d, k).into_iter().map(|(rows, key)| Cell {
                value: maths::mean(rows.iter().map(|row| past.value(*row)), past.d),
                key,
                rows,
            });
            let cells: Vec<_> = cells.collect();
            let opened = budget.saturating_sub(cells.len());
            Cells { past, cells, opened }
        }))
    }
}

struct Cell {
    rows: Vec<usize>,
    key: Vec<f32>,
    value: Vec<f32>,
}

struct Cells<'a> {
    past: Past<'a>,
    cells: Vec<Cell>,
    /// Rows that may be read.
    opened: usize,
}

impl Far for Cells<'_> {
    fn answer<'a>(&'a self, query: &Query, answers: &mut Answers<'a>) -> Reads {
        let group = query.near.len();
        let score =
            |cell: &Cell| query.scores(&cell.key).map(|s| s + (cell.rows.len() as f32).ln()).collect::<Vec<_>>();
        let scores: Vec<f32> = self.cells.iter().flat_map(score).collect();
        let mut attention = vec![0.0; self.cells.len()];
        for (r, near) in query.near.iter().enumerate() {
            let of_head = scores.iter().skip(r).step_by(group).copied();
            let lse = maths::log_sum_exp(of_head.clone().chain([*near]));
            attention.iter_mut().zip(of_head).for_each(|(all, s)| *all += (s - lse).exp());
        }
        let mut left = self.opened;
        let mut reads = Reads { keys: self.cells.len(), anchors: self.cells.len(), ..Reads::default() };
        for i in maths::largest(&attention, self.cells.len()) {
            let cell = &self.cells[i];
            if cell.rows.len() <= left {
                left -= cell.rows.len();
                reads += Reads::rows(cell.rows.len());
                cell.rows.iter().for_each(|row| answers.push(query.scores(self.past.key(*row)), self.past.value(*row)));
            } else {
                // Cells of less attention are not opened in its stead.
                left = 0;
                reads.values += 1;
                answers.push(scores[i * group..(i + 1) * group].iter().copied(), &cell.value);
            }
        }
        reads
    }

    fn kept(&self) -> usize {
        Reads::rows(self.past.rows() + self.cells.len()).bytes(self.past.d)
    }
}
