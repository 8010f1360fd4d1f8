//! A few rows stand for all: their keys, with biases that give recent queries the right mass, and values that give them the right
//! answers. Zweiger et al. 2026, "Fast KV compaction via attention matching" (arXiv:2602.16284): keys of highest attention (root mean
//! square over queries), biases by non-negative least squares, values by least squares; as many for each head.

use super::{Answers, Covers, Dense, Far, Method, Past, Query, Reads, attend, each, maths};
use crate::error::Result;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Matching;

impl Method for Matching {
    fn name(&self) -> &'static str {
        "matching"
    }

    fn covers<'a>(&'a self, dense: &'a Dense, budget: usize) -> Result<Covers<'a>> {
        Ok(each(dense, |past| matched(past, budget)))
    }
}

/// Most recent queries that are matched.
const MATCHED: usize = 1024;

struct Matched<'a> {
    past: Past<'a>,
    rows: Vec<usize>,
    biases: Vec<f32>,
    values: Vec<f32>,
}

impl Far for Matched<'_> {
    fn answer<'a>(&'a self, query: &Query, answers: &mut Answers<'a>) -> Reads {
        for ((row, bias), value) in self.rows.iter().zip(&self.biases).zip(self.values.chunks(self.past.d)) {
            answers.push(query.scores(self.past.key(*row)).map(|s| s + bias), value);
        }
        Reads { anchors: self.rows.len(), rows: 0, ..Reads::rows(self.rows.len()) }
    }

    fn kept(&self) -> usize {
        Reads::rows(self.rows.len()).bytes(self.past.d) + 2 * self.rows.len()
    }
}

fn matched(past: Past<'_>, budget: usize) -> Matched<'_> {
    let d = past.d;
    let queries: Vec<f32> = past.queries(0..past.local()).flat_map(|query| query.q).collect();
    let all = queries.len() / d;
    let n = all.min(MATCHED);
    let queries: Vec<_> = (0..n).map(|i| i * all / n).map(|i| &queries[i * d..(i + 1) * d]).collect();
    // Of each query: the share of its far mass that a row has.
    let shares: Vec<Vec<f32>> = queries
        .iter()
        .map(|q| {
            let score = |row| attend::capped(maths::dot(q, past.key(row)), past.scores.cap);
            let scores: Vec<f32> = (0..past.rows()).map(score).collect();
            let mass = maths::log_sum_exp(scores.iter().copied());
            scores.iter().map(|s| (s - mass).exp()).collect()
        })
        .collect();
    let mut squares = vec![0.0; past.rows()];
    for of_query in &shares {
        squares.iter_mut().zip(of_query).for_each(|(sum, share)| *sum += share * share);
    }
    let rows = maths::largest(&squares, budget);
    let b = rows.len();
    let mut columns: Vec<f32> = rows.iter().flat_map(|row| shares.iter().map(|of_query| of_query[*row])).collect();
    let weights = non_negative(&columns, n);
    // Shares of what is kept, as it will be weighed; and what is missing when values stay as they are.
    columns.chunks_mut(n).zip(&weights).for_each(|(column, w)| column.iter_mut().for_each(|x| *x *= w));
    let sums: Vec<f32> = (0..n).map(|i| columns.iter().skip(i).step_by(n).sum::<f32>().max(1e-20)).collect();
    columns.chunks_mut(n).for_each(|column| column.iter_mut().zip(&sums).for_each(|(x, sum)| *x /= sum));
    let mut missing = vec![0.0; n * d];
    for ((i, of_query), missing) in shares.iter().enumerate().zip(missing.chunks_mut(d)) {
        of_query.iter().enumerate().for_each(|(row, share)| maths::add_scaled(missing, *share, past.value(row)));
        rows.iter().enumerate().for_each(|(j, row)| maths::add_scaled(missing, -columns[j * n + i], past.value(*row)));
    }
    let mut values: Vec<f32> = rows.iter().flat_map(|row| past.value(*row).to_vec()).collect();
    let changes = least_squares(&columns, n, b, &missing, d);
    values.iter_mut().zip(changes).for_each(|(value, change)| *value += change);
    Matched { past, rows, biases: weights.iter().map(|w| w.ln()).collect(), values }
}

/// Weights, at least `LEAST`, of columns of `n` numbers whose sum is nearest to 1 everywhere: coordinate descent.
fn non_negative(columns: &[f32], n: usize) -> Vec<f32> {
    const SWEEPS: usize = 50;
    const LEAST: f32 = 1e-4;
    let mut weights = vec![1.0; columns.len() / n];
    let mut left = vec![1.0; n];
    columns.chunks(n).for_each(|column| maths::add_scaled(&mut left, -1.0, column));
    for _ in 0..SWEEPS {
        for (column, weight) in columns.chunks(n).zip(&mut weights) {
            let square = maths::dot(column, column);
            if square > 0.0 {
                let new = (*weight + maths::dot(column, &left) / square).max(LEAST);
                maths::add_scaled(&mut left, *weight - new, column);
                *weight = new;
            }
        }
    }
    weights
}

/// The smallest change C, `[b, d]`, that brings X C near to Y: X^T (X X^T + λ)^-1 Y, or (X^T X + λ)^-1 X^T Y. X: `b` columns of `n`; Y: `[n, d]`.
fn least_squares(columns: &[f32], n: usize, b: usize, y: &[f32], d: usize) -> Vec<f32> {
    const RIDGE: f64 = 1e-3;
    let rows: Vec<f32> = (0..n).flat_map(|i| columns.iter().skip(i).step_by(n)).copied().collect();
    // Products of the side that has fewer vectors.
    let (vectors, len, size) = if b <= n { (columns, n, b) } else { (&rows[..], b, n) };
    let vector = |i: usize| &vectors[i * len..(i + 1) * len];
    let mut gram = vec![0.0f64; size * size];
    for i in 0..size {
        for j in 0..=i {
            gram[i * size + j] = f64::from(maths::dot(vector(i), vector(j)));
        }
    }
    let trace: f64 = (0..size).map(|i| gram[i * size + i]).sum();
    (0..size).for_each(|i| gram[i * size + i] += RIDGE * trace / size as f64 + 1e-12);
    let times = |vectors: &[f32], len: usize, y: &[f32]| -> Vec<f32> {
        let product = |vector: &[f32]| {
            let mut sum = vec![0.0; d];
            vector.iter().zip(y.chunks(d)).for_each(|(x, y)| maths::add_scaled(&mut sum, *x, y));
            sum
        };
        vectors.chunks(len).flat_map(product).collect()
    };
    match b <= n {
        true => solve(gram, size, &times(columns, n, y), d),
        false => times(columns, n, &solve(gram, size, y, d)),
    }
}

/// Solves a symmetric positive system, of which `a` is the lower half, for `d` right sides, `[n, d]`: Cholesky.
fn solve(mut a: Vec<f64>, n: usize, y: &[f32], d: usize) -> Vec<f32> {
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for i in 0..n {
        for j in 0..=i {
            let (before, row) = a.split_at_mut(i * n);
            let sum =
                if j == i { product(&row[..j], &row[..j]) } else { product(&row[..j], &before[j * n..j * n + j]) };
            row[j] = if j == i { (row[i] - sum).max(1e-30).sqrt() } else { (row[j] - sum) / before[j * n + j] };
        }
    }
    let mut x: Vec<f64> = y.iter().map(|y| f64::from(*y)).collect();
    let eliminate = |x: &mut [f64], i: usize, j: usize, factor: f64| {
        (0..d).for_each(|k| x[i * d + k] -= factor * x[j * d + k]);
    };
    for i in 0..n {
        (0..i).for_each(|j| eliminate(&mut x, i, j, a[i * n + j]));
        x[i * d..(i + 1) * d].iter_mut().for_each(|x| *x /= a[i * n + i]);
    }
    for i in (0..n).rev() {
        (i + 1..n).for_each(|j| eliminate(&mut x, i, j, a[j * n + i]));
        x[i * d..(i + 1) * d].iter_mut().for_each(|x| *x /= a[i * n + i]);
    }
    x.iter().map(|x| *x as f32).collect()
}
