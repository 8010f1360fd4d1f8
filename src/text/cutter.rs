//! Cuts text into words, within which tokens are merged.

use std::cell::Cell;
use std::time::{Duration, Instant};

use fancy_regex::{Regex, RegexBuilder};
use tokenizers::pattern::{Invert, Pattern};
use tokenizers::{Offsets, PreTokenizedString, PreTokenizer, PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::error::{Error, Result};

/// Steps, each of which cuts what the one before it left.
#[derive(Debug, Default)]
pub(super) struct Cutter(Vec<Step>);

#[derive(Debug)]
enum Step {
    Split { regex: Regex, behavior: SplitDelimiterBehavior, invert: bool },
    Other(PreTokenizerWrapper),
}

/// Bytes of a regex.
const MAX_REGEX: usize = 8 << 10;
/// Bytes of one that is compiled.
const MAX_COMPILED: usize = 16 << 20;
/// Times that the search for one word may go back.
const MAX_BACKTRACKS: usize = 1_000_000;
/// Regexes come with models and may be made to take long: time for a text, and more for each of its bytes.
const MAX_TIME: Duration = Duration::from_secs(5);
const MAX_TIME_OF_A_BYTE: Duration = Duration::from_micros(20);

impl Cutter {
    /// With one more step, which runs no regex of the model's.
    pub(super) fn then(mut self, step: impl Into<PreTokenizerWrapper>) -> Cutter {
        self.0.push(Step::Other(step.into()));
        self
    }

    /// With one more step: what `regex` matches is a word, and so is what is between.
    pub(super) fn isolate(self, regex: &str) -> Result<Cutter> {
        self.split(regex, SplitDelimiterBehavior::Isolated, false)
    }

    /// With one more step: cuts at what `regex` matches, or with `invert` at what it does not.
    pub(super) fn split(mut self, regex: &str, behavior: SplitDelimiterBehavior, invert: bool) -> Result<Cutter> {
        if regex.len() > MAX_REGEX {
            let found = regex.len();
            return Err(Error::Tokenizer(format!("regex: expected at most {MAX_REGEX} bytes, found {found}")));
        }
        let mut builder = RegexBuilder::new(regex);
        builder.backtrack_limit(MAX_BACKTRACKS).delegate_size_limit(MAX_COMPILED).delegate_dfa_size_limit(MAX_COMPILED);
        let regex = builder.build().map_err(|e| Error::Tokenizer(format!("regex {regex:?}: {e}")))?;
        self.0.push(Step::Split { regex, behavior, invert });
        Ok(self)
    }
}

impl PreTokenizer for Cutter {
    fn pre_tokenize(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        for step in &self.0 {
            match step {
                Step::Other(step) => step.pre_tokenize(text)?,
                Step::Split { regex, behavior, invert } => {
                    let bounded = Bounded { regex, begun: Instant::now(), bytes: &Cell::new(0) };
                    text.split(|_, part| match invert {
                        true => part.split(Invert(bounded), *behavior),
                        false => part.split(bounded, *behavior),
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// A regex whose search is an error when it takes too long; that of `tokenizers` ends without a word.
#[derive(Clone, Copy)]
struct Bounded<'a> {
    regex: &'a Regex,
    begun: Instant,
    /// Of the text so far.
    bytes: &'a Cell<u32>,
}

impl Pattern for Bounded<'_> {
    fn find_matches(&self, text: &str) -> tokenizers::Result<Vec<(Offsets, bool)>> {
        self.bytes.set(self.bytes.get().saturating_add(text.len().try_into().unwrap_or(u32::MAX)));
        let most = MAX_TIME + MAX_TIME_OF_A_BYTE * self.bytes.get();
        let mut parts = vec![];
        let mut done = 0;
        for (i, found) in self.regex.find_iter(text).enumerate() {
            let found = found.map_err(|e| format!("cutting text into words with {}: {e}", self.regex.as_str()))?;
            if i % 16 == 0 && self.begun.elapsed() > most {
                return Err(
                    format!("cutting text into words with {} takes longer than {most:?}", self.regex.as_str()).into()
                );
            }
            if done < found.start() {
                parts.push(((done, found.start()), false));
            }
            parts.push(((found.start(), found.end()), true));
            done = found.end();
        }
        if done < text.len() || text.is_empty() {
            parts.push(((done, text.len()), false));
        }
        Ok(parts)
    }
}
