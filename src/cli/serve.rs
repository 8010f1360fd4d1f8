//! `serve`: OpenAI's API over HTTP.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tokio::net::TcpListener;

use super::chat::CONTEXT;
use super::drafts::DraftArgs;
use super::interrupt::{Stoppable, exit_code, interrupted};
use super::model::{EngineArgs, ModelArgs, describe};
use super::output::note;
use crate::chat::{template, tokenizer};
use crate::error::{Error, Result};
use crate::scheduler::{Limits, Pooling, Scheduler};
use crate::server::{ServerOptions, Service};

/// Serve OpenAI's API over HTTP, with a page to chat on
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: ModelArgs,
    /// Address to listen on; 0.0.0.0 lets other machines in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: String,
    /// Port to listen on; 0 takes a free one
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// What clients must send as `Authorization: Bearer KEY`
    #[arg(long, value_name = "KEY", env = "FARPAST_API_KEY", hide_env_values = true)]
    api_key: Option<String>,
    /// Name of the model in requests and answers; without it that of its file
    #[arg(long, visible_alias = "served-model-name", value_name = "NAME")]
    alias: Option<String>,
    /// Requests computed at once. Also -np
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    parallel: u32,
    /// Tokens of all requests together that are kept on the device; without it four times the context
    #[arg(long, value_name = "TOKENS")]
    kv_tokens: Option<usize>,
    /// Requests that may wait; more are told to come again
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    queue: usize,
    /// Page from which browsers may ask, such as https://example.org, or *
    #[arg(long, value_name = "ORIGIN")]
    cors: Option<String>,
    /// How embeddings are made of hidden states
    #[arg(long, value_enum, default_value_t = PoolingArg::Mean)]
    pooling: PoolingArg,
    /// Most bytes of a request
    #[arg(long, value_name = "BYTES", default_value_t = 8 << 20)]
    max_body: usize,
    /// Seconds that requests may take to end after SIGTERM or Ctrl-C
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
    #[command(flatten)]
    pub engine: EngineArgs,
    #[command(flatten)]
    drafts: DraftArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum PoolingArg {
    Mean,
    Last,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let weights = options.model.open()?;
    let tokenizer = Arc::new(tokenizer(&weights)?);
    let template = match template(&weights, &tokenizer) {
        Ok(template) => Some(template),
        Err(e) => {
            note(format_args!("note: no chats, completions only: {e}"));
            None
        }
    };
    let stem = weights.path().file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = options.alias.clone().or(stem).unwrap_or_else(|| "model".into());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(network)?;
    // Before the model is loaded: a port in use should not take that long to be found out.
    let listener = runtime.block_on(TcpListener::bind((options.host.as_str(), options.port))).map_err(network)?;
    let address = listener.local_addr().map_err(network)?;

    let (engine, parallel, kv_tokens) = (options.engine.clone(), options.parallel as usize, options.kv_tokens);
    let warnings = tokenizer.warnings().to_vec();
    let (draft, tokens) = (options.drafts.open()?, tokenizer.clone());
    let mut described = false;
    let load = move || {
        let mut loaded = engine.load_shared(&weights, CONTEXT, parallel, kv_tokens)?;
        if let Some(draft) = &draft {
            let load = |weights: &_| engine.dense().load_shared(weights, CONTEXT, parallel, kv_tokens);
            draft.guess_for(&mut loaded, &tokens, load)?;
        }
        if !std::mem::replace(&mut described, true) {
            describe(&weights, &loaded, &warnings);
        }
        Ok(loaded)
    };
    let limits = Limits { waiting: options.queue, ..Limits::default() };
    let (scheduler, handle) = Scheduler::new(load, tokenizer.clone(), limits)?;
    let thread = std::thread::spawn(move || scheduler.run());
    let settings = ServerOptions {
        api_key: options.api_key.clone(),
        cors: options.cors.clone(),
        pooling: match options.pooling {
            PoolingArg::Mean => Pooling::Mean,
            PoolingArg::Last => Pooling::Last,
        },
        attention: options.engine.kind(),
        speculation: options.drafts.speculation(),
        body: options.max_body,
        drain: Duration::from_secs(options.drain),
    };
    let service = Service::new(handle, tokenizer, template, name, settings);
    note(format_args!("serving http://{address}"));
    let _stoppable = Stoppable::new();
    runtime.block_on(service.serve(listener, asked_to_end())).map_err(network)?;
    // Streams that were cut off end now; with them go the last handles, and the scheduler ends.
    drop(runtime);
    if thread.join().is_err() {
        return Err(Error::Device { device: "engine".into(), what: "its thread has panicked".into() });
    }
    Ok(exit_code())
}

/// Ready after SIGTERM or Ctrl-C.
async fn asked_to_end() {
    let interrupt = async {
        while !interrupted() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    #[cfg(unix)]
    match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
        Ok(mut terminate) => tokio::select! {
            _ = terminate.recv() => (),
            () = interrupt => (),
        },
        Err(_) => interrupt.await,
    }
    #[cfg(not(unix))]
    interrupt.await;
}

fn network(source: std::io::Error) -> Error {
    Error::Io { path: "network".into(), source }
}
