//! One sequence: its tokens, its pages and how its next token is drawn.

use crate::attention::Attention;
use crate::attention::aoc::{Far, Head};
use crate::constrain::Constraint;
use crate::error::Result;
use crate::kernels::PENDING;
use crate::kv::{PAGE, PagePool, PageTable};
use crate::sampler::{Logprobs, Sampling, TokenSet};
use crate::speculation::{Pace, Speculation};

/// A sequence of tokens, the first of which are computed (their keys and values are in pages) and the rest pending.
#[derive(Debug)]
pub struct Session {
    tokens: Vec<u32>,
    pub(crate) table: PageTable,
    /// Of its last tokens, by position: the step that drew each and where the device has its id.
    drawn: [(u64, u32); PENDING],
    /// How tokens are drawn from now on.
    pub sampling: Sampling,
    /// How tokens are guessed where [`Engine::decode`](crate::engine::Engine::decode) decodes this session alone; `None`: not at all.
    pub speculation: Option<Speculation>,
    pub(crate) pace: Pace,
    /// Of its last tokens, those that were guessed for a step that is not over.
    drafted: usize,
    /// What a draft model knows of it.
    pub(crate) drafter: Option<Box<Session>>,
    /// With how many alternatives [`take_logprobs`](Self::take_logprobs) has the tokens drawn from now on; `None`: not at all.
    pub logprobs: Option<usize>,
    scored: Vec<Logprobs>,
    /// With where it begins.
    constraint: Option<(Constraint, usize)>,
    attention: Attention,
    /// With [`Attention::Aoc`].
    pub(crate) far: Option<Far>,
}

impl Session {
    pub(crate) fn new(pool: &PagePool, attention: Attention) -> Self {
        let far = match attention {
            Attention::Aoc(options) => Some(Far::new(options)),
            _ => None,
        };
        Self {
            tokens: Vec::new(),
            table: PageTable::new(pool),
            drawn: [(0, 0); PENDING],
            sampling: Sampling::default(),
            speculation: None,
            pace: Pace::default(),
            drafted: 0,
            drafter: None,
            logprobs: None,
            scored: Vec::new(),
            constraint: None,
            attention,
            far,
        }
    }

    /// All tokens, computed and pending.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens that the next steps will compute.
    pub fn pending(&self) -> &[u32] {
        &self.tokens[self.table.len().min(self.tokens.len())..]
    }

    /// How many of its tokens are computed.
    pub fn computed(&self) -> usize {
        self.tokens.len() - self.pending().len()
    }

    /// What its tokens attend to.
    pub fn attention(&self) -> Attention {
        self.attention
    }

    /// Positions that are read from trees of anchors.
    pub fn far(&self) -> usize {
        self.far.as_ref().map_or(0, Far::rows)
    }

    /// What is known of the heads of key and value that read from them: those of one layer after the other. Empty before anything was
    /// measured.
    pub fn heads(&self) -> Vec<Head> {
        self.far.as_ref().map_or(Vec::new(), Far::heads)
    }

    /// Rows of the far past, anchors among them, that a query reads on average over the heads.
    pub fn reads(&self) -> f64 {
        self.far.as_ref().map_or(0.0, Far::reads)
    }

    /// Appends tokens.
    pub fn push(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Makes `tokens` its tokens; what it has in common with them stays computed.
    pub fn set_tokens(&mut self, tokens: &[u32]) {
        let common = common(&self.tokens, tokens);
        self.rewind(common);
        self.push(&tokens[common..]);
    }

    /// Forgets the tokens from `len` on, and the pages that held them. Where pages of positions before `len` are no more, as the far
    /// past of [`Attention::Window`] and [`Attention::Aoc`] is not kept by position, all tokens behind the first page are
    /// pending again.
    pub fn rewind(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.forget(len);
        self.unfollow(len);
        self.pace = Pace::default();
    }

    /// Gives its pages back; all its tokens are pending.
    pub fn release(&mut self) {
        self.forget(0);
        self.drafter = None;
    }

    /// A copy that shares this one's full pages, and its far past. Up to a page of tokens at the end is pending again.
    pub fn fork(&self) -> Self {
        let far = self.far.as_ref().map(Far::fork);
        Self {
            tokens: self.tokens.clone(),
            table: self.table.fork(),
            drawn: self.drawn,
            sampling: self.sampling.clone(),
            speculation: self.speculation,
            pace: self.pace,
            drafted: 0,
            drafter: None,
            logprobs: self.logprobs,
            scored: Vec::new(),
            constraint: self.constraint.clone(),
            attention: self.attention,
            far,
        }
    }

    /// Draws nothing from now on but what `constraint` allows behind the tokens that are there; `None` allows all. Steps are then one at
    /// a time.
    pub fn constrain(&mut self, constraint: Option<Constraint>) {
        self.constraint = constraint.map(|constraint| (constraint, self.tokens.len()));
    }

    /// Whether a constraint says what may be drawn.
    pub fn is_constrained(&self) -> bool {
        self.constraint.is_some()
    }

    /// What may be drawn behind each of its last `n` tokens, if a constraint says so: an error where they do not follow it themselves.
    pub(crate) fn allowed(&mut self, n: usize) -> Result<Option<Vec<TokenSet>>> {
        self.unfollow(self.tokens.len() + 1 - n);
        let Some((constraint, first)) = &mut self.constraint else { return Ok(None) };
        let mut sets = Vec::new();
        for len in self.tokens.len() + 1 - n..=self.tokens.len() {
            for id in &self.tokens[*first + constraint.taken()..len] {
                constraint.take(*id)?;
            }
            sets.push(constraint.allowed()?);
        }
        Ok(Some(sets))
    }

    /// Logprobs of the tokens drawn since the last call while [`logprobs`](Self::logprobs) asked for them, in their order.
    pub fn take_logprobs(&mut self) -> Vec<Logprobs> {
        std::mem::take(&mut self.scored)
    }

    /// Appends a token that was drawn.
    pub(crate) fn take(&mut self, id: u32, logprobs: Option<Logprobs>) {
        self.push(&[id]);
        self.scored.extend(logprobs);
    }

    /// Appends a draft, as far as a constraint allows it. Returns how many tokens that are.
    pub(crate) fn append_draft(&mut self, mut draft: Vec<u32>) -> Result<usize> {
        if let Some((constraint, first)) = &mut self.constraint {
            for id in &self.tokens[*first + constraint.taken()..] {
                constraint.take(*id)?;
            }
            draft.truncate(constraint.follow(&draft));
        }
        self.push(&draft);
        self.drafted = draft.len();
        Ok(self.drafted)
    }

    /// Tokens of a draft that is not decided on.
    pub(crate) fn drafted(&self) -> usize {
        self.drafted
    }

    /// Takes the draft off its tokens. Computed positions stay.
    pub(crate) fn take_draft(&mut self) -> Vec<u32> {
        let len = self.tokens.len() - std::mem::take(&mut self.drafted);
        let draft = self.tokens.split_off(len);
        self.unfollow(len);
        draft
    }

    /// The step that drew the token at `position`, one of the last, and where the device has its id.
    pub(crate) fn drawn(&self, position: usize) -> (u64, u32) {
        self.drawn[position % PENDING]
    }

    /// Notes that step `step` draws the token behind those computed; the device will have its id at `at`.
    pub(crate) fn draws(&mut self, step: u64, at: u32) {
        self.drawn[self.table.len() % PENDING] = (step, at);
    }

    /// Makes the last token pending when none is: the logits after it are wanted once more.
    pub(crate) fn reopen(&mut self) {
        if self.pending().is_empty() && !self.tokens.is_empty() {
            self.forget(self.tokens.len() - 1);
        }
    }

    /// Forgets the computed positions from `len` on; their tokens, where there are any, are pending again.
    pub(crate) fn forget(&mut self, len: usize) {
        self.table.truncate(len);
        if let Some(far) = &mut self.far {
            far.follow(&self.table);
        }
    }

    /// The constraint forgets the tokens from `len` on.
    fn unfollow(&mut self, len: usize) {
        if let Some((constraint, first)) = &mut self.constraint {
            *first = len.min(*first);
            constraint.rewind((*first + constraint.taken()).saturating_sub(len));
        }
    }

    /// Tokens behind those computed that attend to the pages that they would if steps were of one token each.
    pub(crate) fn together(&self) -> usize {
        match self.attention {
            Attention::Dense => usize::MAX,
            Attention::Window(local) => PAGE - self.table.len().saturating_sub(local) % PAGE,
            // The near past has that many more than is graduated.
            Attention::Aoc(_) => PAGE,
        }
    }

    /// Gives back the pages of positions that no further token reads.
    pub(crate) fn settle(&mut self) {
        if let Attention::Window(local) = self.attention {
            self.table.give_back(self.table.len().saturating_sub(local) / PAGE * PAGE);
        }
    }
}

/// Tokens that both begin with.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}
