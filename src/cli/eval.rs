//! `eval`: what approximating attention to the far past costs in quality, and saves in bytes.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;
use serde_json::{Value, json};

use super::interrupt::{Stoppable, exit_code, interrupted};
use super::model::{EngineArgs, ModelArgs, describe};
use super::output::{bar, note, print};
use crate::attention::Attention;
use crate::chat::tokenizer;
use crate::engine::{Engine, Replay};
use crate::error::{Error, Result};
use crate::eval::needles::{self, Needle};
use crate::eval::{self, Dense, Method, Protocol, Report, SINKS};
use crate::text::{Special, Tokenizer};

/// Compare ways to approximate attention to the far past, over a text
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: ModelArgs,
    /// A file of UTF-8 with the text; several are joined
    #[arg(short, long, value_name = "FILE", required = true)]
    file: Vec<PathBuf>,
    /// Positions of the far past, which stands behind a first page of 16
    #[arg(long, value_name = "POSITIONS", default_value_t = 4096)]
    far: usize,
    /// Positions between it and the held-out tokens
    #[arg(long, value_name = "POSITIONS", default_value_t = 512)]
    local: usize,
    /// Held-out tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 256)]
    tokens: usize,
    /// What to compare: aoc, window, snapkv, quest, kmeans, matching, table0, table1
    #[arg(long, value_delimiter = ',', default_values_t = eval::METHODS.map(String::from))]
    methods: Vec<String>,
    /// Rows of the far past, or as many bytes of anchors, that a query may read
    #[arg(long, value_delimiter = ',', default_values_t = [128, 256, 512, 1024])]
    budgets: Vec<usize>,
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Plant eight facts in the far past and ask for each of them, instead of comparing logits
    #[arg(long, conflicts_with_all = ["tokens", "json", "md", "svg"])]
    needles: bool,
    /// Write all numbers to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the table to this file too
    #[arg(long, value_name = "FILE")]
    md: Option<PathBuf>,
    /// Draw KL against bytes read and kept to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    if let Some(budget) = options.budgets.iter().find(|budget| **budget == 0) {
        return Err(Error::request("budget", "at least 1", budget));
    }
    let methods = options.methods.iter().map(|name| eval::method(name)).collect::<Result<Vec<_>>>()?;
    let read = |file: &PathBuf| fs::read_to_string(file).map_err(Error::io(file));
    let text = options.file.iter().map(read).collect::<Result<Vec<_>>>()?.join("\n");
    let Options { far, local, tokens, .. } = *options;
    let protocol = Protocol { far, local, tokens };
    let weights = options.model.open()?;
    let tokenizer = tokenizer(&weights)?;
    let ids = tokenizer.with_bos(tokenizer.encode(&text, Special::AsText)?);
    // Questions and answers are short. Beside the dense session there is one with anchors, and trees under way.
    let args = options.engine.with_aoc();
    let mut engine = args.load_shared(&weights, protocol.length() + 64, 3, None)?;
    describe(&weights, &engine, tokenizer.warnings());
    let name = weights.metadata().string("general.name").unwrap_or(&engine.config().architecture).to_string();
    drop(weights);
    if options.needles {
        return find_needles(options, &args, &methods, &mut engine, &tokenizer, &text);
    }

    let files: Vec<_> = options.file.iter().map(|file| file.display().to_string()).collect();
    let mut about = json!({
        "model": name,
        "device": engine.device(),
        "files": files,
        "far": far,
        "local": local,
        "tokens": tokens,
    });
    let title = format!("{name}: {far} far rows, {tokens} tokens of {}", files.join(", "));
    let progress = bar("{msg} {wide_bar} {pos} of {len}, {eta} left");
    let _stoppable = Stoppable::new();
    let mut advance = |done: usize, all: usize| {
        progress.set_length(all as u64);
        progress.set_position(done as u64);
        if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut replay = Replay::new(&mut engine)?;
    progress.set_message("dense");
    let dense = Dense::record(&mut replay, &ids, protocol, &mut advance)?;
    about["dense_bytes"] = dense.bytes().into();
    let mut reports: Vec<Report> = Vec::new();
    for method in &methods {
        for &budget in &options.budgets {
            progress.set_message(format!("{} {budget}", method.name()));
            let began = Instant::now();
            let covers = method.covers(&dense, budget)?;
            let covered = began.elapsed().as_secs_f64();
            let outcome = dense.compare(&mut replay, &covers, &mut advance)?;
            let seconds = [covered, began.elapsed().as_secs_f64() - covered];
            let report = Report { method: method.name(), budget, outcome, seconds };
            progress.suspend(|| note(report.json()));
            reports.push(report);
            // A table takes long: what is there is not lost with the rest.
            options.write(&title, &mut about, &reports)?;
        }
    }
    for &budget in &options.budgets {
        progress.set_message(format!("session {budget}"));
        let began = Instant::now();
        let attention = args.attention(budget);
        let outcome = dense.compare_session(replay.engine(), attention, &mut advance)?;
        let report = Report { method: "session", budget, outcome, seconds: [0.0, began.elapsed().as_secs_f64()] };
        progress.suspend(|| note(report.json()));
        reports.push(report);
    }
    progress.finish_and_clear();
    if interrupted() {
        return Ok(exit_code());
    }

    print(&eval::markdown(&reports))?;
    Ok(ExitCode::SUCCESS)
}

impl Options {
    /// Writes the files asked for.
    fn write(&self, title: &str, about: &mut Value, reports: &[Report]) -> Result<()> {
        let write = |file: &Path, text: String| fs::write(file, text).map_err(Error::io(file));
        if let Some(file) = &self.json {
            about["results"] = reports.iter().map(Report::json).collect();
            write(file, format!("{about:#}\n"))?;
        }
        if let Some(file) = &self.md {
            write(file, format!("{title}\n\n{}", eval::markdown(reports)))?;
        }
        if let Some(file) = &self.svg {
            write(file, eval::svg(title, reports))?;
        }
        Ok(())
    }
}

/// Facts that no text foretells, in words that even a model of 135 million weights answers after 4,096 positions.
const FACTS: [(&str, &str); 8] = [
    ("Paris", "7318"),
    ("Tokyo", "2946"),
    ("Cairo", "8051"),
    ("Lima", "4672"),
    ("Oslo", "1387"),
    ("Delhi", "9520"),
    ("Rome", "6243"),
    ("Quito", "3809"),
];

/// What each method finds, and a session of each policy of attention.
fn find_needles(
    options: &Options,
    args: &EngineArgs,
    methods: &[Box<dyn Method>],
    engine: &mut Engine,
    tokenizer: &Tokenizer,
    text: &str,
) -> Result<ExitCode> {
    let encode = |text: &str| tokenizer.encode(text, Special::AsText);
    let needle = |(city, code): &(&str, &str)| {
        let question = encode(&format!("\nThe office in {city} has the number {city}-"))?;
        let whole = encode(&format!("\nThe office in {city} has the number {city}-{code}"))?;
        let fact = encode(&format!("The office in {city} has the number {city}-{code}.\n"))?;
        Ok(Needle { answer: whole[question.len()..].to_vec(), question, fact })
    };
    let needles = FACTS.iter().map(needle).collect::<Result<Vec<_>>>()?;
    let mut lines = text.split_inclusive('\n').map(encode).collect::<Result<Vec<_>>>()?;
    lines.insert(0, tokenizer.with_bos(Vec::new()));
    let protocol = Protocol { far: options.far, local: options.local, tokens: 1 };
    let haystack = needles::haystack(&lines, &needles, options.far, protocol.length())?;

    let mut table = String::from("| attention | budget | needles found |\n|---|---|---|\n");
    let mut add = |name: &str, budget: &str, found: Vec<bool>| {
        let found = found.into_iter().filter(|found| *found).count();
        let line = format!("| {name} | {budget} | {found} of {} |\n", FACTS.len());
        note(line.trim_end());
        table += &line;
    };
    let asked = &haystack[..SINKS + options.far + options.local];
    add("dense", "", needles::found(engine, Attention::Dense, asked, &needles)?);
    for &budget in &options.budgets {
        add("session", &budget.to_string(), needles::found(engine, args.attention(budget), asked, &needles)?);
    }
    let mut go_on = |_, _| if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
    let _stoppable = Stoppable::new();
    let mut replay = Replay::new(engine)?;
    let dense = Dense::record(&mut replay, &haystack, protocol, &mut go_on)?;
    for method in methods {
        for &budget in &options.budgets {
            let covers = method.covers(&dense, budget)?;
            let found = needles::found_by(&mut replay, &dense, &covers, &needles)?;
            add(method.name(), &budget.to_string(), found);
        }
    }
    print(&table)?;
    Ok(ExitCode::SUCCESS)
}
