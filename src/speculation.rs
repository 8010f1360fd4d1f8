//! Speculative decoding: tokens that a sequence may go on with are guessed, and one step computes several of them.
//!
//! A draft is appended to the one pending token of a sequence. The step draws behind each of them as it would without the draft, by
//! the same noise of the same position, and what is drawn stands up to the first token that the draft has otherwise. So the output
//! is that of decoding one by one, bit for bit where a device computes the same bits in any batch, for every
//! [`Sampling`](crate::sampler::Sampling) and constraint; what drafts foresee changes nothing but the time. (Trees of
//! [`attention::aoc`](crate::attention::aoc) are built between steps: where a query reads less than all of their rows, what it reads
//! depends on how many steps there were.)
//!
//! Drafts come from the sequence itself ([`Speculation::look_up`]: Saxena 2023, "Prompt lookup decoding"; Yang et al. 2023, "Inference with
//! reference", arXiv:2304.04487) or from a smaller model of the same vocabulary (Leviathan et al. 2023, arXiv:2211.17192), which draws
//! by the same noise and so agrees more often than one that draws by its own.

/// How the next tokens of a sequence are guessed. Drafts are named as in llama.cpp, look-ups as in vLLM.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Speculation {
    /// Tokens of a draft at most. A step has no more than it has rows of logits beside those that it draws from anyway: 15 for one
    /// sequence.
    pub draft_max: usize,
    /// Shorter drafts are left out.
    pub draft_min: usize,
    /// So many of the last tokens at most are looked up among those before them; 0: none, drafts come from a draft model only.
    pub lookup_max: usize,
    /// So many must be found.
    pub lookup_min: usize,
}

impl Default for Speculation {
    fn default() -> Self {
        Self { draft_max: 11, draft_min: 1, lookup_max: 16, lookup_min: 3 }
    }
}

/// What drafts have come to.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DraftCounts {
    /// Drafts.
    pub drafts: u64,
    /// Their tokens.
    pub drafted: u64,
    /// Of those, tokens that were drawn.
    pub accepted: u64,
}

impl Speculation {
    /// Up to `most` tokens that may follow `tokens`: those behind the place where most of the last ones came before, the newest of several
    /// such places, again and again where that is near the end. None where too few did.
    pub fn look_up(&self, tokens: &[u32], most: usize) -> Vec<u32> {
        let (mut longest, mut found) = (0, tokens.len());
        for end in (1..tokens.len()).rev() {
            let pairs = tokens[..end].iter().rev().zip(tokens.iter().rev());
            let n = pairs.take(self.lookup_max).take_while(|(a, b)| a == b).count();
            if n > longest {
                (longest, found) = (n, end);
                if n == self.lookup_max {
                    break;
                }
            }
        }
        if longest < self.lookup_min.max(1) {
            return Vec::new();
        }
        let period = tokens.len() - found;
        let mut draft: Vec<u32> = Vec::with_capacity(most);
        for i in 0..most {
            draft.push(tokens.get(found + i).copied().unwrap_or_else(|| draft[i - period]));
        }
        draft
    }
}

/// How much a sequence drafts, by how its drafts have fared.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Tokens of the next draft at most.
    length: usize,
    /// Drafts in a row of which nothing was drawn.
    failures: u32,
    /// Tokens that the sequence has before it drafts again.
    resumes: usize,
}

/// Tokens of a first draft: with the token before them they are the four that a tile of linears holds.
const FIRST: usize = 3;

/// After so many failures pauses grow no more: drafts are then tried every 64 tokens.
const FAILURES: u32 = 6;

impl Default for Pace {
    fn default() -> Self {
        Self { length: FIRST, failures: 0, resumes: 0 }
    }
}

impl Pace {
    /// Tokens of a draft behind `len` tokens, at most, where fewer than `least` are none.
    pub fn most(&self, len: usize, least: usize) -> usize {
        if len < self.resumes { 0 } else { self.length.max(least) }
    }

    /// Of a draft of `drafted` tokens `accepted` were drawn; `len` tokens are known now.
    pub fn learn(&mut self, drafted: usize, accepted: usize, len: usize) {
        self.length = if accepted == drafted { (2 * drafted + 1).max(FIRST) } else { FIRST };
        self.failures = if accepted == 0 { (self.failures + 1).min(FAILURES) } else { 0 };
        self.resumes = len + if self.failures > 0 { 1 << self.failures } else { 0 };
    }
}
