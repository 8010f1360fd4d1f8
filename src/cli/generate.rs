//! `generate`: text that goes on from a prompt, without a chat template.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use super::chat::CONTEXT;
use super::input::{SamplingArgs, TextArgs};
use super::interrupt::{Stoppable, exit_code, interrupted};
use super::model::{EngineArgs, ModelArgs, describe};
use super::output::{Stream, note, print_json};
use crate::chat::{End, tokenizer};
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::session::Session;
use crate::text::{Special, StreamDecoder, Tokenizer};

/// Go on from a text, without a chat template; control tokens in it count as such
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Print one JSON object at the end: text, why it ended, tokens and seconds
    #[arg(long)]
    json: bool,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let text = TextArgs::required(options.text.read_prompt()?)?;
    let began = Instant::now();
    let weights = options.model.open()?;
    let tokenizer = tokenizer(&weights)?;
    let prompt = tokenizer.with_bos(tokenizer.encode(&text, Special::Parse)?);
    if prompt.is_empty() {
        return Err(Error::request("prompt", "some text", "none"));
    }
    let mut engine = options.engine.load(&weights, CONTEXT)?;
    describe(&weights, &engine, tokenizer.warnings());
    drop(weights);
    let context = engine.capacity().context;
    if prompt.len() > context {
        return Err(Error::request("prompt", format!("at most {context} tokens"), prompt.len()));
    }
    let load = began.elapsed();
    let mut session = engine.session();
    session.sampling = options.sampling.sampling();
    session.push(&prompt);
    let mut stream = Stream::new();
    let mut generated = Generated::default();
    let end = {
        let _stoppable = Stoppable::new();
        let limit = options.sampling.limit().unwrap_or(usize::MAX);
        generated.extend(&mut engine, &mut session, &tokenizer, limit, |piece| match options.json {
            true => interrupted(),
            false => stream.write(piece).is_break(),
        })?
    };
    let Generated { text, tokens, prefill, decode } = generated;
    let decoded = tokens.saturating_sub(1);
    if options.json {
        print_json(&json!({
            "text": text,
            "end": name(end),
            "prompt_tokens": prompt.len(),
            "tokens": tokens,
            "context": context,
            "device": engine.device(),
            "seconds": {
                "load": load.as_secs_f64(),
                "prefill": prefill.as_secs_f64(),
                "decode": decode.as_secs_f64(),
            },
        }))?;
    } else {
        stream.finish(false)?;
        note(format_args!(
            "prefill of {} {:.1} tokens/s, decode of {decoded} {:.1} tokens/s, ended by {}",
            prompt.len(),
            prompt.len() as f64 / prefill.as_secs_f64().max(1e-9),
            decoded as f64 / decode.as_secs_f64().max(1e-9),
            name(end)
        ));
    }
    Ok(exit_code())
}

fn name(end: End) -> &'static str {
    match end {
        End::Stop => "stop",
        End::Limit => "limit",
        End::Context => "context",
        End::Interrupted => "interrupt",
    }
}

/// What has come of a prompt.
#[derive(Default)]
struct Generated {
    text: String,
    tokens: usize,
    /// Up to the first token.
    prefill: Duration,
    /// After the first token.
    decode: Duration,
}

impl Generated {
    /// Draws up to `limit` tokens and passes their text to `stops`, with empty pieces while the prompt is computed.
    fn extend(
        &mut self,
        engine: &mut Engine,
        session: &mut Session,
        tokenizer: &Tokenizer,
        limit: usize,
        mut stops: impl FnMut(&str) -> bool,
    ) -> Result<End> {
        let mut decoder = StreamDecoder::continuing();
        let end = loop {
            if self.tokens >= limit {
                break End::Limit;
            }
            if session.tokens().len() > engine.capacity().context {
                break End::Context;
            }
            let began = Instant::now();
            let sampled = engine.step(&mut [&mut *session])?[0];
            *if self.tokens == 0 { &mut self.prefill } else { &mut self.decode } += began.elapsed();
            let piece = match sampled {
                Some(id) if tokenizer.stop_ids().contains(&id) => break End::Stop,
                Some(id) => {
                    self.tokens += 1;
                    decoder.push(id, tokenizer)
                }
                None => "",
            };
            self.text.push_str(piece);
            if stops(piece) {
                break End::Interrupted;
            }
        };
        let rest = decoder.finish();
        self.text.push_str(rest);
        // The text is over in any case.
        stops(rest);
        Ok(end)
    }
}
