//! Anchored attention, with beams as wide for each head as its errors on recent queries ask for.

use std::sync::OnceLock;

use rayon::prelude::*;

use super::attend::attend;
use super::forest::{Beam, Forest, forests, kept};
use super::{Covers, Dense, Far, Method, Past, SINKS};
use crate::attention::aoc::first_size;
use crate::attention::choose;
use crate::error::Result;

/// See the module. Trees are built once, of the first dense run, and serve any budget.
#[derive(Default)]
pub struct Aoc {
    made: OnceLock<Vec<Forest>>,
}

/// Widths that a head may have; 0 reads all rows.
const WIDTHS: [usize; 13] = [2, 3, 4, 6, 8, 12, 16, 24, 32, 40, 48, 64, 0];

impl Method for Aoc {
    fn name(&self) -> &'static str {
        "aoc"
    }

    fn covers<'a>(&'a self, dense: &'a Dense, budget: usize) -> Result<Covers<'a>> {
        let pasts: Vec<_> = dense.pasts().collect();
        let forests = self.made.get_or_init(|| {
            let dims = dense.dims();
            pasts.par_chunks(dims.kv_heads).flat_map(|layer| forests(dims, layer)).collect()
        });
        let rows = dense.protocol().far;
        let trees = forests.first().map_or(&[][..], |forest| &forest.trees);
        let size = first_size(trees.iter().map(|tree| tree.rows), budget);
        let costs: Vec<_> = WIDTHS.iter().map(|width| Beam { width: *width, size }.cost(rows)).collect();
        let measured = pasts.par_iter().zip(forests).map(|(past, forest)| errors(past, forest, size));
        let chosen = choose(&measured.collect::<Vec<_>>(), &costs, budget);
        let cover = |(forest, chosen): (&'a Forest, usize)| -> Box<dyn Far + 'a> {
            Box::new(forest.cover(Beam { width: WIDTHS[chosen], size }))
        };
        Ok(forests.iter().zip(chosen).map(cover).collect())
    }
}

/// Errors of a head's answers, near past and far past together, with each of [`WIDTHS`]: the square of each over that of what is right,
/// on average over the queries.
fn errors(past: &Past, forest: &Forest, size: usize) -> Vec<f64> {
    let [_, measured] = kept(past);
    // All heads of a group share a beam: a query of one of them alone would see an error that is too small.
    let answer = |local: usize, width: usize| {
        let near = (SINKS + local + 1) * past.d;
        let [keys, values] = past.near().map(|x| &x[..near]);
        let cover = forest.cover(Beam { width, size });
        attend(past.query(local), past.d, past.scores, keys, values, Some(&cover)).0
    };
    let right: Vec<_> = measured.iter().map(|query| answer(*query, 0)).collect();
    let square = |x: &[f32]| x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>();
    let error = |width: &usize| {
        let errors = measured.iter().zip(&right).map(|(query, right)| {
            let found = answer(*query, *width);
            let error: Vec<_> = found.iter().zip(right).map(|(a, b)| a - b).collect();
            square(&error) / square(right).max(f64::MIN_POSITIVE)
        });
        errors.sum::<f64>() / measured.len() as f64
    };
    WIDTHS.iter().map(error).collect()
}
