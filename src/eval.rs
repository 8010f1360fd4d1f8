//! How close a model stays to itself when attention to the far past is approximated, and at what cost: the same measure for
//! anchored attention and for what others do.
//!
//! Of a text the first page of positions are sinks; then come `far` positions, the far past; then `local` ones, and `tokens`
//! held-out ones. One dense run leaves queries, keys, values and logits. A [`Method`] makes covers of the far past of each key and value head,
//! knowing only what stands before the held-out tokens. These run once more through the whole model, so that errors of all layers add
//! up: sinks, local and held-out positions are attended to exactly, and the far past as its covers answer. Layers with a sliding
//! window stay as they are.

mod aoc;
mod attend;
mod dense;
mod forest;
mod kmeans;
mod matching;
mod maths;
pub mod needles;
mod quest;
mod report;
mod snapkv;
mod table;
mod window;

pub use aoc::Aoc;
pub use attend::{Answers, Far, Query, Reads};
pub use dense::{Dense, Past, Protocol, SINKS, Sequel};
pub use forest::{Beam, Forest, Tree};
pub use kmeans::Kmeans;
pub use matching::Matching;
pub use quest::Quest;
pub use report::{Outcome, Report, log_sum_exp, markdown, svg};
pub use snapkv::SnapKv;
pub use table::Table;
pub use window::Window;

use rayon::prelude::*;

use crate::error::{Error, Result};

/// A way to answer for the far past.
pub trait Method: Sync {
    /// As the command line has it.
    fn name(&self) -> &'static str;

    /// What it makes of each head's far past, in the order of [`Dense::pasts`], so that a query reads `budget` rows of key and value
    /// on average, or as few more as it can; a key alone counts half.
    fn covers<'a>(&'a self, dense: &'a Dense, budget: usize) -> Result<Covers<'a>>;
}

/// Of each key and value head.
pub type Covers<'a> = Vec<Box<dyn Far + 'a>>;

/// Every method.
pub const METHODS: [&str; 8] = ["aoc", "window", "snapkv", "quest", "kmeans", "matching", "table0", "table1"];

/// The method of that name.
pub fn method(name: &str) -> Result<Box<dyn Method>> {
    Ok(match name {
        "aoc" => Box::new(Aoc::default()),
        "window" => Box::new(Window),
        "snapkv" => Box::new(SnapKv),
        "quest" => Box::new(Quest),
        "kmeans" => Box::new(Kmeans),
        "matching" => Box::new(Matching),
        "table0" => Box::new(Table { order: 0 }),
        "table1" => Box::new(Table { order: 1 }),
        _ => return Err(Error::request("method", format!("one of {}", METHODS.join(", ")), name)),
    })
}

/// A cover of each head by itself.
fn each<'a, F: Far + 'a>(dense: &'a Dense, cover: impl Fn(Past<'a>) -> F + Sync) -> Covers<'a> {
    let pasts: Vec<_> = dense.pasts().collect();
    pasts.into_par_iter().map(|past| Box::new(cover(past)) as Box<dyn Far + 'a>).collect()
}
