//! Facts planted in a long text, and several questions about one and the same past: what was evicted for the sake of one question cannot
//! answer another.

use super::{Covers, Dense, SINKS, Sequel};
use crate::attention::Attention;
use crate::engine::{Engine, Replay};
use crate::error::{Error, Result};

/// A fact of the text, as tokens.
#[derive(Clone, Debug)]
pub struct Needle {
    /// What stands in the text.
    pub fact: Vec<u32>,
    /// What a question ends with, to be completed.
    pub question: Vec<u32>,
    /// Its completion.
    pub answer: Vec<u32>,
}

/// `lines` of tokens up to `length` tokens, with the needles between them at equal distances in the first `far`.
pub fn haystack(lines: &[Vec<u32>], needles: &[Needle], far: usize, length: usize) -> Result<Vec<u32>> {
    let mut tokens = Vec::with_capacity(length);
    let mut left = needles.iter().enumerate().peekable();
    for line in lines {
        let depth = |i: usize| SINKS + (2 * i + 1) * far / (2 * needles.len());
        while let Some((_, needle)) = left.next_if(|(i, _)| tokens.len() >= depth(*i)) {
            tokens.extend_from_slice(&needle.fact);
        }
        tokens.extend_from_slice(line);
    }
    if tokens.len() < length {
        return Err(Error::request("tokens of the text with its needles", format!("at least {length}"), tokens.len()));
    }
    tokens.truncate(length);
    Ok(tokens)
}

/// Which needles a session with `attention` finds behind the tokens of `text`, whose keys and values all questions share.
pub fn found(engine: &mut Engine, attention: Attention, text: &[u32], needles: &[Needle]) -> Result<Vec<bool>> {
    let mut session = engine.session_with(attention)?;
    session.push(text);
    engine.each_logits(&mut session, usize::MAX, |_, _| ())?;
    let mut found = Vec::new();
    for needle in needles {
        let mut question = session.fork();
        question.sampling.temperature = 0.0;
        question.push(&needle.question);
        let before = question.tokens().len();
        while question.tokens().len() < before + needle.answer.len() {
            engine.step(&mut [&mut question])?;
        }
        found.push(question.tokens()[before..] == needle.answer);
    }
    Ok(found)
}

/// The same behind the local positions of a dense run, whose far past covers answer for.
pub fn found_by(replay: &mut Replay, dense: &Dense, covers: &Covers, needles: &[Needle]) -> Result<Vec<bool>> {
    let ask = |needle: &Needle| {
        let mut sequel = Sequel::new(dense, covers);
        let (mut answer, mut pending) = (Vec::new(), needle.question.clone());
        while answer.len() < needle.answer.len() {
            let mut next = 0;
            sequel.run(replay, &pending, |_, row| {
                next = (1..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best });
            })?;
            answer.push(next as u32);
            pending = vec![next as u32];
        }
        Ok(answer == needle.answer)
    };
    needles.iter().map(ask).collect()
}
