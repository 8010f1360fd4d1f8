//! Pages of which least and most of each dim are kept: those with the highest bounds of their scores are read, the others are not.
//! Tang et al. 2024, "Quest" (arXiv:2406.10774). Heads that share keys and values open pages together: those of most attention, were
//! each row's score its page's bound.

use super::{Answers, Covers, Dense, Far, Method, Past, Query, Reads, each, maths};
use crate::error::Result;
use crate::kv::PAGE;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Quest;

impl Method for Quest {
    fn name(&self) -> &'static str {
        "quest"
    }

    fn covers<'a>(&'a self, dense: &'a Dense, budget: usize) -> Result<Covers<'a>> {
        Ok(each(dense, |past| {
            let bounds = (0..past.rows().div_ceil(PAGE)).map(|page| bounds(&past, page));
            let bounds: Vec<_> = bounds.collect();
            // Both bounds are keys.
            let opened = (budget.saturating_sub(bounds.len()) / PAGE).max(1);
            Pages { past, bounds, opened }
        }))
    }
}

struct Pages<'a> {
    past: Past<'a>,
    /// Least and most.
    bounds: Vec<[Vec<f32>; 2]>,
    opened: usize,
}

fn rows(past: &Past, page: usize) -> std::ops::Range<usize> {
    page * PAGE..((page + 1) * PAGE).min(past.rows())
}

fn bounds(past: &Past, page: usize) -> [Vec<f32>; 2] {
    let fold = |least: f32, f: fn(f32, f32) -> f32| {
        let mut bound = vec![least; past.d];
        for row in rows(past, page) {
            bound.iter_mut().zip(past.key(row)).for_each(|(bound, k)| *bound = f(*bound, *k));
        }
        bound
    };
    [fold(f32::INFINITY, f32::min), fold(f32::NEG_INFINITY, f32::max)]
}

impl Far for Pages<'_> {
    fn answer<'a>(&'a self, query: &Query, answers: &mut Answers<'a>) -> Reads {
        let mut attention = vec![0.0; self.bounds.len()];
        for (q, near) in query.q.chunks(query.d).zip(&query.near) {
            let bound = |[least, most]: &[Vec<f32>; 2]| {
                let dims = q.iter().zip(least).zip(most);
                super::attend::capped(dims.map(|((q, least), most)| (q * least).max(q * most)).sum(), query.cap)
            };
            let bounds: Vec<f32> = self.bounds.iter().map(bound).collect();
            let lse = maths::log_sum_exp(bounds.iter().copied().chain([*near]));
            attention.iter_mut().zip(bounds).for_each(|(all, bound)| *all += (bound - lse).exp());
        }
        let mut reads = Reads { keys: 2 * self.bounds.len(), anchors: 2 * self.bounds.len(), ..Reads::default() };
        for page in maths::largest(&attention, self.opened) {
            let rows = rows(&self.past, page);
            reads += Reads::rows(rows.len());
            rows.for_each(|row| answers.push(query.scores(self.past.key(row)), self.past.value(row)));
        }
        reads
    }

    fn kept(&self) -> usize {
        Reads::rows(self.past.rows() + self.bounds.len()).bytes(self.past.d)
    }
}
