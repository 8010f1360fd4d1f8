//! `perplexity`: how well a model foretells a text.
//!
//! For tokens t of a text, exp(-1/n · Σ ln p(t_i | t_<i)), with ln p from the logits in f64. The text is cut into contexts of
//! equal length, of which the second halves count, so that every token scored has half a context or more before it: as llama.cpp
//! does. With `--all` there is one context, of which all tokens but the first count.

use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde_json::json;

use super::input::TextArgs;
use super::interrupt::{Stoppable, exit_code, interrupted};
use super::model::{EngineArgs, ModelArgs, describe};
use super::output::{bar, note, print, print_json};
use crate::chat::tokenizer;
use crate::engine::{Engine, check_ids};
use crate::error::{Error, Result};
use crate::eval::log_sum_exp;
use crate::session::Session;
use crate::text::Special;

/// Measure how well a model foretells a text
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Score all tokens but the first of one context, which is the text's first -c tokens
    #[arg(long)]
    all: bool,
    /// Most contexts to score
    #[arg(long, value_name = "COUNT", conflicts_with = "all")]
    chunks: Option<usize>,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print one JSON object with the result
    #[arg(long)]
    json: bool,
}

/// Tokens of a context without `-c`: what published figures use.
const CONTEXT: usize = 512;

pub fn run(options: &Options) -> Result<ExitCode> {
    let text = TextArgs::required(options.text.read()?)?;
    let began = Instant::now();
    let weights = options.model.open()?;
    let tokenizer = tokenizer(&weights)?;
    let tokens = tokenizer.with_bos(tokenizer.encode(&text, Special::AsText)?);
    let bos = tokenizer.with_bos(Vec::new());
    let usual = if options.all { tokens.len().max(1) } else { CONTEXT };
    let mut engine = options.engine.load(&weights, usual)?;
    describe(&weights, &engine, tokenizer.warnings());
    drop(weights);

    let context = engine.capacity().context;
    let (length, first) = if options.all { (context.min(tokens.len()), 0) } else { (context, context / 2) };
    // The last token of a context is only foretold.
    if length < first + 2 {
        return Err(Error::request("context", "at least 3 tokens, or 2 of --all", length));
    }
    if options.all && length < tokens.len() {
        note(format_args!("note: the first {length} of the text's {} tokens are scored", tokens.len()));
    }
    let vocab = engine.config().vocab;
    check_ids(&tokens, vocab)?;
    let most = if options.all { 1 } else { options.chunks.unwrap_or(usize::MAX) };
    let chunks: Vec<Vec<u32>> = tokens
        .chunks_exact(length)
        .take(most)
        // Every context begins as a text does.
        .map(|chunk| if bos.is_empty() { chunk.into() } else { [&bos, &chunk[bos.len()..]].concat() })
        .collect();
    if chunks.is_empty() {
        let expected = format!("at least {length} tokens, the context");
        return Err(Error::request("text", expected, tokens.len()));
    }

    let progress = bar("{msg} {wide_bar} {pos} of {len} tokens, {eta} left");
    progress.set_length((chunks.len() * (length - 1)) as u64);
    let mut score = Score::default();
    {
        let _stoppable = Stoppable::new();
        for chunk in &chunks {
            let session = options.engine.session(&engine)?;
            score.add_chunk(&mut engine, session, chunk, first, |score, n| {
                progress.set_message(format!("perplexity {:.4}", score.nll().exp()));
                progress.inc(n as u64);
            })?;
        }
    }
    progress.finish_and_clear();
    if interrupted() {
        return Ok(exit_code());
    }

    let (nll, error) = (score.nll(), score.standard_error());
    let (chunks, seconds) = (chunks.len(), began.elapsed().as_secs_f64());
    match options.json {
        true => print_json(&json!({
            "perplexity": nll.exp(),
            "perplexity_error": nll.exp() * error,
            "nll": nll,
            "nll_error": error,
            "scored": score.n,
            "context": length,
            "chunks": chunks,
            "text_tokens": tokens.len(),
            "device": engine.device(),
            "seconds": seconds,
        }))?,
        false => print(&format!(
            "perplexity {:.4} ± {:.4}, NLL {nll:.5} ± {error:.5} per token; {} tokens scored in {chunks} contexts of {length}, \
             {seconds:.1} s\n",
            nll.exp(),
            nll.exp() * error,
            score.n,
        ))?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The negative log likelihoods of tokens.
#[derive(Default)]
struct Score {
    n: usize,
    sum: f64,
    squares: f64,
}

impl Score {
    /// Scores each token of `chunk` that stands after position `first`; breaks off when Ctrl-C was pressed.
    fn add_chunk(
        &mut self,
        engine: &mut Engine,
        mut session: Session,
        chunk: &[u32],
        first: usize,
        mut computed: impl FnMut(&Self, usize),
    ) -> Result<()> {
        for tokens in chunk[..chunk.len() - 1].chunks(engine.capacity().tokens) {
            if interrupted() {
                break;
            }
            session.push(tokens);
            engine.each_logits(&mut session, first, |position, logits| self.add(nll(logits, chunk[position + 1])))?;
            computed(self, tokens.len());
        }
        Ok(())
    }

    fn add(&mut self, nll: f64) {
        self.n += 1;
        self.sum += nll;
        self.squares += nll * nll;
    }

    /// Of a token, on average.
    fn nll(&self) -> f64 {
        self.sum / self.n as f64
    }

    /// Of the average, were the tokens independent.
    fn standard_error(&self) -> f64 {
        let variance = self.squares / self.n as f64 - self.nll() * self.nll();
        (variance.max(0.0) / (self.n as f64 - 1.0)).sqrt()
    }
}

/// -ln softmax(logits)\[id\].
fn nll(logits: &[f32], id: u32) -> f64 {
    log_sum_exp(logits) - logits[id as usize] as f64
}
