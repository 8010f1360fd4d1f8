//! Rows of keys or values whose elements share scales.

use half::f16;

use super::Element;
use crate::kv::PAGE;

/// Elements of a block.
const LEN: usize = 32;

/// Rows of keys or values in blocks of 32 elements, the last one of a row filled with zeros: element = d · q, d an f16.
///
/// `Q8_0`: q from -127 to 127; the largest magnitude is 127 d. `Q4_0`: q from -8 to 7; the element of the largest magnitude is -8 d.
/// Both are llama.cpp's (ggml-quants.c), but for q being rounded with the rounded d, ties to even.
///
/// Of each PAGE rows, which are a head of a page, first the q of all rows: 8 words a block, or 4 with, in each byte, element `8w + b` in the
/// low bits and `8w + 4 + b` in the high ones, each plus 8. Then the d of all rows, two in a word; a row of them ends with a whole word.
#[derive(Clone, Debug)]
pub struct Blocks {
    element: Element,
    cols: usize,
    words: Vec<u32>,
}

/// Bits of an element, which is also words of a block.
fn bits(element: Element) -> usize {
    match element {
        Element::Q8_0 => 8,
        Element::Q4_0 => 4,
        other => panic!("{other:?} is not stored in blocks"),
    }
}

/// Words of q of a row, and of d.
fn words_of(element: Element, cols: usize) -> [usize; 2] {
    let blocks = cols.div_ceil(LEN);
    [blocks * bits(element), blocks.div_ceil(2)]
}

/// Words of a row, on average over those of a head of a page.
pub(super) fn row_words(element: Element, cols: usize) -> usize {
    words_of(element, cols).into_iter().sum()
}

impl Blocks {
    /// `words` as they are on the device, of whole pages of rows of `cols` elements. Panics unless `element` is a format of blocks.
    pub fn new(element: Element, cols: usize, words: Vec<u32>) -> Self {
        assert!(words.len().is_multiple_of(PAGE * row_words(element, cols)), "{element:?} rows of {cols}: whole pages");
        Self { element, cols, words }
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// As they are on the device.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    pub(super) fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    /// All q and d of row `i`, those that fill its last block and word too.
    pub fn quants(&self, i: usize) -> (Vec<i32>, Vec<f16>) {
        let [q, d] = self.places(i);
        let [_, of_d] = words_of(self.element, self.cols);
        let quants = (0..self.cols.next_multiple_of(LEN)).map(|j| self.quant(q, j)).collect();
        (quants, (0..2 * of_d).map(|block| self.scale(d, block)).collect())
    }

    /// The elements of row `i`.
    pub fn row(&self, i: usize, row: &mut [f32]) {
        let [q, d] = self.places(i);
        for (block, to) in row.chunks_mut(LEN).enumerate() {
            let scale = self.scale(d, block).to_f32();
            to.iter_mut().enumerate().for_each(|(j, x)| *x = scale * self.quant(q, LEN * block + j) as f32);
        }
    }

    /// Element `j` of row `i`.
    pub fn get(&self, i: usize, j: usize) -> f32 {
        let [q, d] = self.places(i);
        self.scale(d, j / LEN).to_f32() * self.quant(q, j) as f32
    }

    /// The largest magnitude that the block of element `j` of row `i` can hold.
    pub fn largest(&self, i: usize, j: usize) -> f32 {
        let [_, d] = self.places(i);
        self.scale(d, j / LEN).to_f32().abs() * if self.element == Element::Q8_0 { 127.0 } else { 8.0 }
    }

    /// q of element `j` of the row whose q begin at word `row`.
    fn quant(&self, row: usize, j: usize) -> i32 {
        match self.element {
            Element::Q8_0 => i32::from((self.words[row + j / 4] >> (8 * (j % 4))) as i8),
            _ => (self.words[row + j / 8] >> nibble(j) & 15) as i32 - 8,
        }
    }

    /// d of a block of the row whose d begin at word `row`.
    fn scale(&self, row: usize, block: usize) -> f16 {
        f16::from_bits((self.words[row + block / 2] >> (16 * (block % 2))) as u16)
    }

    /// Rounds `row` to row `i`.
    pub fn set_row(&mut self, i: usize, row: &[f32]) {
        let [q, d] = self.places(i);
        let [of_q, of_d] = words_of(self.element, self.cols);
        self.words[q..q + of_q].fill(0);
        self.words[d..d + of_d].fill(0);
        for (block, from) in row.chunks(LEN).enumerate() {
            let scale = scale_of(self.element, from);
            self.words[d + block / 2] |= u32::from(scale.to_bits()) << (16 * (block % 2));
            let inverse = if scale == f16::ZERO { 0.0 } else { scale.to_f64().recip() };
            for j in 0..LEN {
                let x = (from.get(j).map_or(0.0, |x| f64::from(*x)) * inverse).round_ties_even();
                let (word, shift, bits) = match self.element {
                    Element::Q8_0 => (8 * block + j / 4, 8 * (j % 4), x.clamp(-127.0, 127.0) as i8 as u8),
                    _ => (4 * block + j / 8, nibble(j), (x + 8.0).clamp(0.0, 15.0) as u8),
                };
                self.words[q + word] |= u32::from(bits) << shift;
            }
        }
    }

    /// Where q and d of row `i` begin.
    fn places(&self, i: usize) -> [usize; 2] {
        let [of_q, of_d] = words_of(self.element, self.cols);
        let head = i / PAGE * PAGE * (of_q + of_d);
        [head + i % PAGE * of_q, head + PAGE * of_q + i % PAGE * of_d]
    }
}

/// The first bit in its word of element `j` of 4 bits.
fn nibble(j: usize) -> usize {
    8 * (j % 4) + j % 8 / 4 * 4
}

/// d of a block of these elements.
fn scale_of(element: Element, block: &[f32]) -> f16 {
    let ends = block.iter().fold([0f32; 2], |[least, most], x| [least.min(*x), most.max(*x)]);
    let extreme = if ends[1] > -ends[0] { ends[1] } else { ends[0] };
    let scale = match element {
        Element::Q8_0 => f64::from(extreme.abs()) / 127.0,
        _ => f64::from(extreme) / -8.0,
    };
    f16::from_f64(scale.clamp(-65504.0, 65504.0))
}
