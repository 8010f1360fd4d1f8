//! Drafts: tokens that a session may go on with, guessed before a step and verified after it. See [`speculation`](crate::speculation).

use super::{Drawn, Engine};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::speculation::DraftCounts;
use crate::text::Tokenizer;

impl Engine {
    /// Sessions that speculate are guessed by `model` from now on where their own tokens say nothing. An error where the tokens of `own`
    /// and `models`, the tokenizers of the two, are not the same.
    pub fn draft_by(&mut self, model: Engine, own: &Tokenizer, models: &Tokenizer) -> Result<()> {
        own.check_same_tokens(models)?;
        self.draft_model = Some(Box::new(model));
        Ok(())
    }

    /// What drafts have come to so far.
    pub fn draft_counts(&self) -> DraftCounts {
        self.draft_counts
    }

    /// Whether the session, some of whose tokens have no id yet, would have a draft if it were at its last known one.
    pub(crate) fn would_draft(&self, s: &Session) -> bool {
        let Some(speculation) = s.speculation else { return false };
        let found = || !speculation.look_up(s.tokens(), 1).is_empty();
        s.pace.most(s.tokens().len(), 1) > 0 && (self.draft_model.is_some() || found())
    }

    /// Guesses up to `most` tokens behind the pending one of a session that speculates, and appends them until they are
    /// [verified](Self::verify). Returns how many they are.
    pub(crate) fn draft(&mut self, s: &mut Session, most: usize) -> Result<usize> {
        let Some(speculation) = s.speculation else { return Ok(0) };
        let (len, capacity) = (s.tokens().len(), self.memory.capacity);
        // The token before them takes a row, too.
        let rows = (capacity.outputs.min(capacity.tokens) - 1).min(s.together() - 1);
        let room = capacity.context.saturating_sub(len);
        let limits = [most, rows, room, speculation.draft_max, s.pace.most(len, speculation.draft_min)];
        let most = limits.into_iter().min().unwrap_or(0);
        if most == 0 {
            return Ok(0);
        }
        let mut draft = speculation.look_up(s.tokens(), most);
        if let Some(model) = &mut self.draft_model
            && draft.is_empty()
        {
            draft = model.guess(s, most)?;
            // Rows of logits may be padded to different numbers.
            let known = draft.iter().position(|id| *id as usize >= self.config.vocab).unwrap_or(draft.len());
            draft.truncate(known);
        }
        if draft.len() < speculation.draft_min {
            return Ok(0);
        }
        s.append_draft(draft)
    }

    /// Takes the draft off the session's tokens, and forgets what was computed for those of it that were not drawn. Returns what stands of
    /// `drawn`, which the session has yet to take: all up to the first that the draft had not foreseen.
    pub(crate) fn verify(&mut self, s: &mut Session, mut drawn: Vec<Drawn>) -> Vec<Drawn> {
        if s.drafted() == 0 {
            return drawn;
        }
        let draft = s.take_draft();
        let accepted = draft.iter().zip(&drawn).take_while(|(id, drawn)| **id == drawn.id).count();
        drawn.truncate(accepted + 1);
        let len = s.tokens().len() + accepted;
        s.forget(len);
        s.pace.learn(draft.len(), accepted, len + 1);
        let DraftCounts { drafts, drafted, accepted: all } = &mut self.draft_counts;
        *drafts += 1;
        *drafted += draft.len() as u64;
        *all += accepted as u64;
        drawn
    }

    /// Draws up to `most` tokens as `s` would draw them behind all of its own; none where it cannot.
    fn guess(&mut self, s: &mut Session, most: usize) -> Result<Vec<u32>> {
        let mut drafter = match s.drafter.take() {
            Some(drafter) => drafter,
            None => Box::new(self.session()),
        };
        drafter.sampling = s.sampling.clone();
        drafter.set_tokens(s.tokens());
        let len = s.tokens().len();
        let guessed = self.complete(&mut drafter, len + most);
        match guessed {
            Ok(()) => {
                let guess = drafter.tokens()[len..].to_vec();
                s.drafter = Some(drafter);
                Ok(guess)
            }
            Err(Error::OutOfPages { .. } | Error::ContextFull { .. } | Error::Request { .. }) => Ok(Vec::new()),
            Err(e) => Err(e),
        }
    }

    /// Computes the pending tokens of a session and draws until it has `len`.
    fn complete(&mut self, s: &mut Session, len: usize) -> Result<()> {
        while self.step(&mut [s])?[0].is_none() {}
        let more = len - s.tokens().len();
        if more > 0 { self.decode(&mut [s], more, |_| std::ops::ControlFlow::Continue(())) } else { Ok(()) }
    }
}
