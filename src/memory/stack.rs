//! Rows of weights as a linear uses them.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use super::WeightRows;
use crate::format::{Format, SLAB};

/// Rows of one tensor, or of several of one format and length, in any order.
#[derive(Clone, Debug)]
pub struct WeightStack {
    tensors: Vec<WeightRows>,
    /// Row i is row `order[i]` of all tensors' rows; without it, row i. Shared by slices.
    order: Option<Arc<[u32]>>,
    range: Range<usize>,
}

/// Stands in an order for a row of zeros.
const ZEROS: u32 = u32::MAX;

impl WeightStack {
    /// The pairs of rows that a linear takes two by two: slabs of the first rows of pairs and of the second alternate. Zeros
    /// fill the last. Panics unless formats and lengths are equal.
    pub fn pairs(tensors: Vec<WeightRows>, pairs: &[[usize; 2]]) -> Self {
        let mut order = vec![ZEROS; pairs.len().next_multiple_of(SLAB) * 2];
        for (i, pair) in pairs.iter().enumerate() {
            for (row, place) in pair.iter().zip(Self::pair(i)) {
                order[place] = *row as u32;
            }
        }
        let range = 0..order.len();
        Self { order: Some(order.into()), range, ..tensors.into() }
    }

    /// Where the rows of pair `i` stand.
    pub fn pair(i: usize) -> [usize; 2] {
        let first = i / SLAB * 2 * SLAB + i % SLAB;
        [first, first + SLAB]
    }

    /// How a row is stored.
    pub fn format(&self) -> &'static Format {
        self.tensors[0].format
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.range.len()
    }

    /// Weights in a row.
    pub fn cols(&self) -> usize {
        self.tensors[0].cols
    }

    /// Rows `range` of these.
    pub fn slice(&self, range: Range<usize>) -> Self {
        let start = self.range.start;
        Self { range: start + range.start..start + range.end, ..self.clone() }
    }

    /// Row `i` as the format has it; empty for a row of zeros.
    pub fn row(&self, i: usize) -> Cow<'_, [u8]> {
        self.locate(i).map_or(Cow::Borrowed(&[]), |(tensor, i)| tensor.blocks(i..i + 1))
    }

    /// The same rows, in memory where the checkpoint holds them in another format.
    pub fn in_format(&self) -> Self {
        Self { tensors: self.tensors.iter().map(WeightRows::in_format).collect(), ..self.clone() }
    }

    /// Tells the operating system that these rows of a mapped file will not be read again soon.
    pub fn release(&self) {
        self.tensors.iter().for_each(|tensor| tensor.bytes.release());
    }

    /// Decodes row `i` into `weights` (`cols` long).
    pub fn decode_row(&self, i: usize, weights: &mut [f32]) {
        match self.locate(i) {
            Some((tensor, i)) => tensor.decode_row(i, weights),
            None => weights.fill(0.0),
        }
    }

    fn locate(&self, i: usize) -> Option<(&WeightRows, usize)> {
        let i = self.range.start + i;
        let mut i = match &self.order {
            Some(order) if order[i] == ZEROS => return None,
            Some(order) => order[i] as usize,
            None => i,
        };
        for tensor in &self.tensors {
            if i < tensor.rows {
                return Some((tensor, i));
            }
            i -= tensor.rows;
        }
        panic!("row {i} lies behind the last")
    }
}

impl From<Vec<WeightRows>> for WeightStack {
    /// One after the other. Panics unless formats and lengths are equal.
    fn from(tensors: Vec<WeightRows>) -> Self {
        assert!(tensors.iter().all(|t| (t.format, t.cols) == (tensors[0].format, tensors[0].cols)), "rows of one kind");
        Self { range: 0..tensors.iter().map(|t| t.rows).sum(), tensors, order: None }
    }
}
