//! The command line `farpast`; feature `cli`.
//!
//! Results go to standard output and everything else to standard error. The exit code is 0, 1 after an error, 2 after a wrong
//! usage, 130 after Ctrl-C. That nobody reads the output any more is no error.

mod bench;
mod chat;
mod completions;
mod devices;
mod drafts;
mod eval;
mod generate;
mod input;
mod inspect;
mod interrupt;
mod model;
mod output;
mod perplexity;
mod prompt_cache;
mod pull;
#[cfg(feature = "server")]
mod serve;
mod tokenize;
#[cfg(feature = "mcp")]
mod tools;

use std::ffi::OsString;
use std::io;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::error::Error;

/// Language models on any GPU.
#[derive(Parser)]
#[command(name = "farpast", version, arg_required_else_help = true)]
struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Chat(chat::Options),
    Generate(generate::Options),
    Pull(pull::Options),
    Inspect(inspect::Options),
    Tokenize(tokenize::Options),
    Perplexity(perplexity::Options),
    Bench(bench::Options),
    #[cfg(feature = "server")]
    Serve(serve::Options),
    Eval(eval::Options),
    Devices(devices::Options),
    Completions(completions::Options),
}

/// Runs the command line whose first argument is the program's name; a wrong one ends the process.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let Options { command } = Options::parse_from(long_flags(arguments));
    interrupt::watch();
    let result = match command {
        _ if command.lists_devices() => devices::list(),
        Command::Chat(options) => chat::run(&options),
        Command::Generate(options) => generate::run(&options),
        Command::Pull(options) => pull::run(&options),
        Command::Inspect(options) => inspect::run(&options),
        Command::Tokenize(options) => tokenize::run(&options),
        Command::Perplexity(options) => perplexity::run(&options),
        Command::Bench(options) => bench::run(&options),
        #[cfg(feature = "server")]
        Command::Serve(options) => serve::run(&options),
        Command::Eval(options) => eval::run(&options),
        Command::Devices(options) => devices::run(&options),
        Command::Completions(options) => completions::run(&options),
    };
    match result {
        Ok(code) => code,
        Err(_) if interrupt::interrupted() => interrupt::CODE.into(),
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            let hint = if matches!(e, Error::Fetch { .. }) { ", or give a GGUF file with -m FILE" } else { "" };
            output::note(format_args!("error: {}{hint}", output::one_line(&e.to_string())));
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn lists_devices(&self) -> bool {
        match self {
            Command::Chat(options) => options.engine.list_devices,
            Command::Generate(options) => options.engine.list_devices,
            Command::Inspect(options) => options.engine.list_devices,
            Command::Perplexity(options) => options.engine.list_devices,
            Command::Bench(options) => options.engine.list_devices,
            #[cfg(feature = "server")]
            Command::Serve(options) => options.engine.list_devices,
            Command::Eval(options) => options.engine.list_devices,
            Command::Pull(_) | Command::Tokenize(_) | Command::Devices(_) | Command::Completions(_) => false,
        }
    }
}

/// Flags of several letters after one dash, as llama.cpp has them.
const FLAGS: [(&str, &str); 9] = [
    ("-hf", "--hf-repo"),
    ("-sys", "--system-prompt"),
    ("-st", "--single-turn"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-dev", "--device"),
    ("-np", "--parallel"),
    ("-md", "--model-draft"),
    ("-jf", "--json-schema-file"),
];

fn long_flags(arguments: impl IntoIterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut flags = true;
    arguments.into_iter().map(move |argument| {
        flags &= argument != "--";
        match FLAGS.iter().find(|(short, _)| flags && argument == *short) {
            Some((_, long)) => long.into(),
            None => argument,
        }
    })
}
