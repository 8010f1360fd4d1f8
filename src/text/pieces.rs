//! BPE by score over characters, with bytes for what the vocabulary lacks.
//!
//! Kudo, Richardson 2018, "SentencePiece: A simple and language independent subword tokenizer and detokenizer", its BPE
//! model. Of all pairs of neighbours whose text is a piece, the pair of the highest score is joined, until none is left.
//! Pairs of equal score are ordered as in the merge lists that Hugging Face derives from scores: longer left part, longer
//! right part, lower id, leftmost.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

/// What stands for a space in the vocabulary.
pub(super) const SPACE: char = '▁';

/// A vocabulary of pieces with scores.
#[derive(Debug)]
pub(super) struct Pieces {
    /// All tokens that are not control.
    ids: HashMap<String, u32>,
    /// None, or no entry, for tokens that merging may not make.
    scores: Vec<Option<f32>>,
    /// The token of each byte.
    bytes: [Option<u32>; 256],
    /// For characters that have neither a piece nor bytes.
    unk: Option<u32>,
    /// A space before each stretch of text.
    space_prefix: bool,
    /// Bytes of the longest piece.
    longest: usize,
    /// Characters that a space follows within some piece. After any other, a text can be cut before a space.
    before_space: HashSet<char>,
}

/// Part of a text; it is in a list at the number of its first character.
struct Symbol {
    /// Byte at which it begins.
    start: usize,
    id: Option<u32>,
    prev: usize,
    /// The list's length after the last symbol; 0 if this symbol has become part of the one before.
    next: usize,
}

/// A pair of symbols that may be joined, the best one greatest.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Pair {
    score: Score,
    left_chars: usize,
    right_chars: usize,
    id: Reverse<u32>,
    at: Reverse<usize>,
    /// Byte after the pair, by which one is known that has changed since.
    end: usize,
}

struct Score(f32);

impl Pieces {
    pub(super) fn new(unk: Option<u32>, space_prefix: bool) -> Pieces {
        Pieces {
            ids: HashMap::new(),
            scores: vec![],
            bytes: [None; 256],
            unk,
            space_prefix,
            longest: 0,
            before_space: HashSet::new(),
        }
    }

    /// Adds the token `id`, which merging makes if it has a score. Of tokens of equal text the first counts.
    pub(super) fn add(&mut self, id: u32, token: &str, score: Option<f32>) {
        if self.ids.contains_key(token) {
            return;
        }
        self.ids.insert(token.into(), id);
        let Some(score) = score else { return };
        self.scores.resize(self.scores.len().max(id as usize + 1), None);
        // Of the two zeros only one.
        self.scores[id as usize] = Some(score + 0.0);
        self.longest = self.longest.max(token.len());
        let before = token.chars().zip(token.chars().skip(1)).filter(|&(_, c)| c == SPACE);
        self.before_space.extend(before.map(|(c, _)| c));
    }

    /// Makes `id` the token of `byte`, if it has none yet.
    pub(super) fn add_byte(&mut self, byte: u8, id: u32) {
        self.bytes[byte as usize].get_or_insert(id);
    }

    pub(super) fn id(&self, token: &str) -> Option<u32> {
        self.ids.get(token).copied()
    }

    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) {
        let mut spaced = String::with_capacity(text.len() + text.len() / 2);
        spaced.extend(self.space_prefix.then_some(SPACE));
        spaced.extend(text.chars().map(|c| if c == ' ' { SPACE } else { c }));
        let first = ids.len();
        let mut done = 0;
        let mut before = None;
        for (at, c) in spaced.char_indices() {
            if c == SPACE && before.is_some_and(|before| !self.before_space.contains(&before)) {
                self.encode_word(&spaced[done..at], first, ids);
                done = at;
            }
            before = Some(c);
        }
        self.encode_word(&spaced[done..], first, ids);
    }

    /// `first` is the place in `ids` at which the text's tokens begin.
    fn encode_word(&self, word: &str, first: usize, ids: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = vec![];
        for (n, (start, c)) in word.char_indices().enumerate() {
            let id = self.id(c.encode_utf8(&mut [0; 4]));
            symbols.push(Symbol { start, id, prev: n.wrapping_sub(1), next: n + 1 });
        }
        let mut pairs: BinaryHeap<Pair> = (0..symbols.len()).filter_map(|at| self.pair(word, &symbols, at)).collect();
        while let Some(pair) = pairs.pop() {
            let Reverse(at) = pair.at;
            let next = symbols[at].next;
            if next == 0 || next == symbols.len() || end(word, &symbols, next) != pair.end {
                continue;
            }
            let after = symbols[next].next;
            symbols[next].next = 0;
            symbols[at].next = after;
            symbols[at].id = Some(pair.id.0);
            if let Some(after) = symbols.get_mut(after) {
                after.prev = at;
            }
            pairs.extend(self.pair(word, &symbols, at));
            if let Some(prev) = at.checked_sub(1).map(|_| symbols[at].prev) {
                pairs.extend(self.pair(word, &symbols, prev));
            }
        }
        let mut at = 0;
        while let Some(symbol) = symbols.get(at) {
            match symbol.id {
                Some(id) => ids.push(id),
                None => self.encode_unknown(&word[symbol.start..end(word, &symbols, at)], first, ids),
            }
            at = symbol.next;
        }
    }

    /// A character as bytes, or as the unknown token, of which one stands for several in a row.
    fn encode_unknown(&self, character: &str, first: usize, ids: &mut Vec<u32>) {
        let bytes: Option<Vec<u32>> = character.bytes().map(|byte| self.bytes[byte as usize]).collect();
        match (bytes, self.unk) {
            (Some(bytes), _) => ids.extend(bytes),
            (None, Some(unk)) if ids[first..].last() != Some(&unk) => ids.push(unk),
            _ => {}
        }
    }

    /// Symbol `at` and the next one, if together they are a piece.
    fn pair(&self, word: &str, symbols: &[Symbol], at: usize) -> Option<Pair> {
        let score = |id: u32| self.scores.get(id as usize).copied().flatten();
        let piece = |symbol: &Symbol| symbol.id.and_then(score);
        let next = symbols[at].next;
        piece(&symbols[at]).and(piece(symbols.get(next)?))?;
        let end = end(word, symbols, next);
        let text = Some(&word[symbols[at].start..end]).filter(|text| text.len() <= self.longest)?;
        let id = self.id(text)?;
        Some(Pair {
            score: Score(score(id)?),
            left_chars: next - at,
            right_chars: symbols[next].next - next,
            id: Reverse(id),
            at: Reverse(at),
            end,
        })
    }
}

/// Byte after symbol `at`.
fn end(word: &str, symbols: &[Symbol], at: usize) -> usize {
    symbols.get(symbols[at].next).map_or(word.len(), |next| next.start)
}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Score {
    fn eq(&self, other: &Score) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}
