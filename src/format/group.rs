//! Bits of the quants q of a group of 32 weights, in the order in which the shaders' `quants` takes them: with one
//! shift and one mask, a byte of a word for each of 4 weights. Word j or a part of it has weights 4j .. and 16 + 4j ..

use half::f16;

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
    let pair = |i: usize| q[i] >> shift & 3;
    for (n, to) in to[..8].iter_mut().enumerate() {
        let i = n + n / 4 * 4;
        *to = pair(i) | pair(16 + i) << 2 | pair(4 + i) << 4 | pair(20 + i) << 6;
    }
}

/// The bit at `shift`: byte i of the word has that of weight 4j + i at bit j, of 16 + 4j + i at bit 4 + j.
pub fn bits(q: &[u8; LEN], shift: u32, to: &mut [u8]) {
    for (i, to) in to[..4].iter_mut().enumerate() {
        *to = (0..8).map(|k| (q[4 * k + i] >> shift & 1) << k).fold(0, |a, b| a | b);
    }
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

/// Moves blocks of `block` bytes apart: `body` bytes of each first, as `split` makes them, then the rest of each, its
/// head.
pub fn planes(bytes: &[u8], block: usize, body: usize, gpu: &mut [u8], split: impl Fn(&[u8], &mut [u8], &mut [u8])) {
    let (blocks, head) = (bytes.len() / block, block - body);
    let (bodies, heads) = gpu.split_at_mut(blocks * body);
    let (heads, padding) = heads.split_at_mut(blocks * head);
    assert!(padding.len() < 4, "{} bytes behind {blocks} blocks", padding.len());
    padding.fill(0);
    let to = bodies.chunks_exact_mut(body).zip(heads.chunks_exact_mut(head));
    for (block, (body, head)) in bytes.chunks_exact(block).zip(to) {
        split(block, body, head);
    }
}

/// Bytes that `planes` fills for `blocks` blocks: whole words.
pub const fn planes_bytes(blocks: usize, block: usize, body: usize) -> usize {
    blocks * body + (blocks * (block - body)).next_multiple_of(4)
}

/// The f16 at byte `at`.
pub fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Rounds `x` to the f16 at byte `at`.
pub fn set_half(block: &mut [u8], at: usize, x: f32) {
    block[at..at + 2].copy_from_slice(&f16::from_f32(x).to_le_bytes());
}
