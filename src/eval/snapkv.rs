//! The rows that the last queries before the held-out tokens attend to most: Li et al. 2024, "SnapKV" (arXiv:2404.14469), with
//! its pooling over neighbours; heads that share keys and values choose together.

use super::window::Rows;
use super::{Covers, Dense, Method, Past, each, maths};
use crate::error::Result;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct SnapKv;

/// Tokens that choose, and rows that attention is pooled over.
const OBSERVED: usize = 64;
const POOL: usize = 7;

impl Method for SnapKv {
    fn name(&self) -> &'static str {
        "snapkv"
    }

    fn covers<'a>(&'a self, dense: &'a Dense, budget: usize) -> Result<Covers<'a>> {
        Ok(each(dense, |past| Rows::new(past, maths::largest(&pooled(&attention(&past)), budget))))
    }
}

/// Attention to each row, added up over the last queries of all heads.
fn attention(past: &Past) -> Vec<f32> {
    let mut all = vec![0.0; past.rows()];
    for query in past.queries(past.local().saturating_sub(OBSERVED)..past.local()) {
        let scores: Vec<f32> =
            (0..past.rows()).flat_map(|row| query.scores(past.key(row)).collect::<Vec<_>>()).collect();
        let group = query.near.len();
        for (r, near) in query.near.iter().enumerate() {
            let of_head = scores.iter().skip(r).step_by(group).copied();
            let far = maths::log_sum_exp(of_head.clone());
            let lse = maths::log_sum_exp([far, *near].into_iter());
            all.iter_mut().zip(of_head).for_each(|(all, s)| *all += (s - lse).exp());
        }
    }
    all
}

/// The largest of each row's neighbourhood.
fn pooled(attention: &[f32]) -> Vec<f32> {
    let neighbours = |i: usize| &attention[i.saturating_sub(POOL / 2)..(i + POOL / 2 + 1).min(attention.len())];
    (0..attention.len()).map(|i| neighbours(i).iter().copied().fold(0.0, f32::max)).collect()
}
