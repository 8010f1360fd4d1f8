//! Bits of the quants q of a group of 32 weights, in the order in which the shaders' `quants` takes them: with one
//! shift and one mask, a byte of a word for each of 4 weights. Word j or a part of it has weights 4j .. and 16 + 4j ..

use half::f16;

use super::UNIT;

/// Weights of a group.
pub const LEN: usize = 32;

/// Bits 0 to 3: word j has weights 4j + i in the low nibbles of its bytes i, 16 + 4j + i in the high ones.
pub fn nibbles(q: &[u8; LEN], to: &mut [u8]) {
    let (low, high) = q.split_at(LEN / 2);
    for ((to, low), high) in to[..LEN / 2].iter_mut().zip(low).zip(high) {
        *to = low & 15 | high << 4;
    }
}

/// The two bits from `shift` on: byte i of word j / 2 has those of weight 4j + i at bit 4 (j % 2), of 16 + 4j + i above
/// them.
pub fn pairs(q: &[u8; LEN], shift: u32, to: &mut [u8]) {
    let pair = |word: usize| fours(q)[word] >> shift & 0x0303_0303;
    let word = |n: usize| pair(2 * n) | pair(4 + 2 * n) << 2 | pair(1 + 2 * n) << 4 | pair(5 + 2 * n) << 6;
    to[..4].copy_from_slice(&word(0).to_le_bytes());
    to[4..8].copy_from_slice(&word(1).to_le_bytes());
}

/// The bit at `shift`: byte i of the word has that of weight 4j + i at bit j, of 16 + 4j + i at bit 4 + j.
pub fn bits(q: &[u8; LEN], shift: u32, to: &mut [u8]) {
    let bit = |(k, four): (usize, u32)| (four >> shift & 0x0101_0101) << k;
    let word = fours(q).into_iter().enumerate().map(bit).fold(0, |a, b| a | b);
    to[..4].copy_from_slice(&word.to_le_bytes());
}

/// Four quants in a word.
fn fours(q: &[u8; LEN]) -> [u32; LEN / 4] {
    std::array::from_fn(|i| u32::from_le_bytes([q[4 * i], q[4 * i + 1], q[4 * i + 2], q[4 * i + 3]]))
}

/// A row of 16-bit weights: unit j of a group has weights 4j .. 4j + 4, then 16 + 4j ...
pub fn halves(row: &[u8], units: &mut [u8]) {
    let at = |i: usize| i / 8 * 64 + i % 4 * UNIT + i / 4 % 2 * 8;
    let (fours, rest) = row.as_chunks::<8>();
    for (i, four) in fours.iter().enumerate() {
        units[at(i)..][..8].copy_from_slice(four);
    }
    units[at(fours.len())..][..rest.len()].copy_from_slice(rest);
}

/// Eight pairs of 6 bits (a, b): byte i has the low nibbles of pair i, a's low; then nibble i has its high bits, a's
/// low.
pub fn scales(pair: impl Fn(usize) -> (u8, u8), to: &mut [u8]) {
    to[8..12].fill(0);
    for i in 0..8 {
        let (a, b) = pair(i);
        to[i] = a & 15 | b << 4;
        to[8 + i / 2] |= (a >> 4 & 3 | b >> 4 << 2) << (4 * (i % 2));
    }
}

/// Moves the parts of a row's blocks apart: part 0 of all blocks, `parts[0]` bytes of each, then part 1 of all, …, as `split`
/// makes them.
pub fn planes<const BYTES: usize, const N: usize>(
    row: &[u8],
    units: &mut [u8],
    parts: [usize; N],
    split: impl Fn(&[u8; BYTES], [&mut [u8]; N]),
) {
    let blocks = row.as_chunks().0;
    let mut rest = units;
    let mut planes = parts.map(|part| {
        let (plane, behind) = std::mem::take(&mut rest).split_at_mut(blocks.len() * part);
        rest = behind;
        plane.chunks_exact_mut(part)
    });
    for block in blocks {
        split(block, planes.each_mut().map(|plane| plane.next().expect("a plane holds a part of every block")));
    }
}

/// Units that `planes` fills for `blocks` blocks.
pub fn planes_units(blocks: usize, parts: &[usize]) -> usize {
    (blocks * parts.iter().sum::<usize>()).div_ceil(UNIT)
}

/// The f16 at byte `at`.
pub fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Rounds `x` to the f16 at byte `at`.
pub fn set_half(block: &mut [u8], at: usize, x: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
}
