//! `generate`: text that goes on from a prompt, without a chat template.

use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde_json::json;

use super::chat::CONTEXT;
use super::drafts::DraftArgs;
use super::input::{SamplingArgs, TextArgs};
use super::interrupt::{Stoppable, exit_code, interrupted};
use super::model::{EngineArgs, ModelArgs, describe};
use super::output::{Stream, note, print_json};
use super::prompt_cache::PromptCacheArgs;
use crate::chat::{End, Generated, generate, tokenizer};
use crate::error::{Error, Result};
use crate::speculation::DraftCounts;
use crate::text::{Special, StreamDecoder};

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
    #[command(flatten)]
    drafts: DraftArgs,
    #[command(flatten)]
    cache: PromptCacheArgs,
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
    if let Some(draft) = options.drafts.open()? {
        draft.guess_for(&mut engine, &tokenizer, |weights| options.engine.dense().load(weights, CONTEXT))?;
    }
    let context = engine.capacity().context;
    if prompt.len() > context {
        return Err(Error::request("prompt", format!("at most {context} tokens"), prompt.len()));
    }
    let empty = options.engine.session(&engine)?;
    let mut session = options.cache.restore(&mut engine, empty)?;
    let load = began.elapsed();
    session.sampling = options.sampling.sampling(&tokenizer);
    session.speculation = options.drafts.speculation();
    session.set_tokens(&prompt);
    session.constrain(options.sampling.constraint(&tokenizer, engine.config().vocab)?);
    let cached = session.computed();
    let mut stream = Stream::new();
    let generated = {
        let _stoppable = Stoppable::new();
        let (decoder, limit) = (StreamDecoder::continuing(), options.sampling.limit());
        generate(&mut engine, &mut session, &tokenizer, decoder, limit, |piece| match options.json {
            true if interrupted() => ControlFlow::Break(()),
            true => ControlFlow::Continue(()),
            false => stream.write(piece),
        })?
    };
    let mut computed = session.fork();
    computed.rewind(prompt.len());
    options.cache.save(&engine, &computed, cached)?;
    let DraftCounts { drafted, accepted, .. } = engine.draft_counts();
    let Generated { text, end, tokens, prefilled, prefill, decoded, decode } = generated;
    if options.json {
        print_json(&json!({
            "text": text,
            "end": name(end),
            "prompt_tokens": prompt.len(),
            "cached_tokens": cached.min(prompt.len() - 1),
            "tokens": tokens,
            "drafted_tokens": drafted,
            "accepted_tokens": accepted,
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
        let guessed = match drafted {
            0 => String::new(),
            _ => format!(" ({accepted} of {drafted} guessed ones accepted)"),
        };
        note(format_args!(
            "prefill of {prefilled} {:.1} tokens/s, decode of {decoded} {:.1} tokens/s{guessed}, ended by {}",
            prefilled as f64 / prefill.as_secs_f64().max(1e-9),
            decoded as f64 / decode.as_secs_f64().max(1e-9),
            name(end)
        ));
    }
    Ok(exit_code())
}

fn name(end: End) -> &'static str {
    match end {
        End::Stop => "stop",
        End::Limit | End::Rounds => "limit",
        End::Context => "context",
        End::Interrupted => "interrupt",
    }
}
