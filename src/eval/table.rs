//! A table of answers: of each anchor, a mean of recent queries, what attention to the far past is there. A query is answered as
//! the nearest anchor is: in zeroth order as it stands; in first order with the log mass corrected by its gradient, the mean key
//! there. This is anchored attention in its most literal form.

use super::{Answers, Covers, Dense, Far, Method, Query, Reads, attend, each, maths};
use crate::error::Result;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// 0 or 1.
    pub order: usize,
}

impl Method for Table {
    fn name(&self) -> &'static str {
        if self.order == 0 { "table0" } else { "table1" }
    }

    /// The keys of the anchors are half of the budget where they are all that a query reads of most of them.
    fn covers<'a>(&'a self, dense: &'a Dense, budget: usize) -> Result<Covers<'a>> {
        Ok(each(dense, |past| {
            let queries: Vec<f32> = past.queries(0..past.local()).flat_map(|query| query.q).collect();
            let anchors = maths::cells(&queries, past.d, 2 * budget).into_iter().map(|(_, q)| {
                let scores = (0..past.rows()).map(|row| attend::capped(maths::dot(&q, past.key(row)), past.scores.cap));
                let scores: Vec<f32> = scores.collect();
                let mass = maths::log_sum_exp(scores.iter().copied());
                let (mut key, mut value) = (vec![0.0; past.d], vec![0.0; past.d]);
                for (row, score) in scores.iter().enumerate() {
                    let weight = (score - mass).exp();
                    maths::add_scaled(&mut key, weight, past.key(row));
                    maths::add_scaled(&mut value, weight, past.value(row));
                }
                Anchor { half: maths::dot(&q, &q) / 2.0, q, mass, key, value }
            });
            Anchors { anchors: anchors.collect(), order: self.order, d: past.d }
        }))
    }
}

struct Anchor {
    q: Vec<f32>,
    half: f32,
    mass: f32,
    key: Vec<f32>,
    value: Vec<f32>,
}

struct Anchors {
    anchors: Vec<Anchor>,
    order: usize,
    d: usize,
}

impl Far for Anchors {
    fn answer<'a>(&'a self, query: &Query, answers: &mut Answers<'a>) -> Reads {
        let group = query.near.len();
        for (r, q) in query.q.chunks(query.d).enumerate() {
            let closeness = |a: &Anchor| maths::dot(q, &a.q) - a.half;
            let nearest = self.anchors.iter().max_by(|a, b| closeness(a).total_cmp(&closeness(b))).expect("an anchor");
            let gradient =
                if self.order == 0 { 0.0 } else { maths::dot(q, &nearest.key) - maths::dot(&nearest.q, &nearest.key) };
            let mass = nearest.mass + gradient;
            answers.push((0..group).map(|other| if other == r { mass } else { f32::NEG_INFINITY }), &nearest.value);
        }
        // Each head may need another answer.
        let n = self.anchors.len();
        Reads { keys: n + self.order * group, values: group, anchors: n, rows: 0 }
    }

    fn kept(&self) -> usize {
        self.anchors.len() * (2 * self.d * (2 + self.order) + 2)
    }
}
