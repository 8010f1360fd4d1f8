//! `bench`: how fast a model and its kernels run, beside what the device could do.
//!
//! Tests have llama-bench's names: `pp512` computes a prompt of 512 tokens, `tg128` draws 128 tokens one after the other, `@ d4096`
//! behind 4096 tokens computed before. GB/s and GFLOP/s are what the recorded program must move and compute at least
//! ([`Cost`](crate::kernel::Cost)) over the time it took. The roofline is the least time of every dispatch, by the device's
//! measured copy bandwidth or its multiply-adds, whichever takes longer, over that time. It is beyond 100 % where what is read
//! again and again stays in a cache.

mod report;

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use self::report::{Device, Model, Report, Row, Settings};
use super::interrupt::{Stoppable, exit_code, interrupted};
use super::model::{EngineArgs, ModelArgs, describe};
use super::output::{mib, note, one_line, print};
use crate::bench::{self, Peaks, Shape};
use crate::engine::{Engine, Profiled, tile};
use crate::error::{Error, Result};
use crate::gpu::Kind;
use crate::models::Config;
use crate::session::Session;

/// Measure how fast a model runs, or the kernels alone
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: ModelArgs,
    /// Tokens of a prompt; several with commas, 0 for no such test
    #[arg(short = 'p', long, value_name = "TOKENS", value_delimiter = ',', default_value = "512")]
    n_prompt: Vec<usize>,
    /// Tokens drawn; several with commas, 0 for no such test
    #[arg(short, long, value_name = "TOKENS", value_delimiter = ',', default_value = "128")]
    n_gen: Vec<usize>,
    /// Tokens computed before each test; several with commas
    #[arg(short = 'd', long, value_name = "TOKENS", value_delimiter = ',', default_value = "0")]
    n_depth: Vec<usize>,
    /// Runs of each test
    #[arg(short, long, value_name = "COUNT", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repetitions: u32,
    /// Do not run each test once before
    #[arg(long)]
    no_warmup: bool,
    /// Time each kernel of a step of every test, too
    #[arg(long)]
    profile: bool,
    /// Time kernels in the shapes of larger models, without a model: all, or those named
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', num_args = 0..=1, conflicts_with_all = ["model", "profile"])]
    kernels: Option<Vec<String>>,
    /// Models whose shapes the kernels have: 1b, 7b; without it both, and 1b where a driver runs shaders on the CPU
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "kernels")]
    shapes: Vec<String>,
    /// Print two results of -o json side by side
    #[arg(long, num_args = 2, value_names = ["A", "B"], conflicts_with_all = ["model", "kernels", "profile"])]
    compare: Option<Vec<PathBuf>>,
    /// How results are printed; a comparison is a table always
    #[arg(short, long, value_enum, value_name = "FORMAT", default_value_t = Output::Md)]
    output: Output,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    Md,
    Json,
    Csv,
}

/// How long a kernel is timed.
const ON_GPU: Duration = Duration::from_millis(500);
const ON_SOFTWARE: Duration = Duration::from_millis(200);

/// Steps of which the host's share is timed.
const HOST_STEPS: usize = 25;

pub fn run(options: &Options) -> Result<ExitCode> {
    if let Some([a, b]) = options.compare.as_deref() {
        print(&report::compare(&Report::read(a)?, &Report::read(b)?)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = match &options.kernels {
        Some(kernels) => time_kernels(options, kernels)?,
        None => run_model(options)?,
    };
    if interrupted() {
        return Ok(exit_code());
    }
    print(&match options.output {
        Output::Md => report.markdown(),
        Output::Json => report.json(),
        Output::Csv => report.csv(),
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Tokens computed before, of a prompt, and drawn: one of the last two is 0.
#[derive(Clone, Copy)]
struct Test {
    depth: usize,
    prompt: usize,
    drawn: usize,
}

impl Test {
    fn all(options: &Options) -> Vec<Self> {
        let mut tests = Vec::new();
        for &depth in &options.n_depth {
            tests.extend(options.n_prompt.iter().map(|&prompt| Self { depth, prompt, drawn: 0 }));
            tests.extend(options.n_gen.iter().map(|&drawn| Self { depth, prompt: 0, drawn }));
        }
        tests.retain(|test| test.tokens() > 0);
        tests
    }

    fn tokens(&self) -> usize {
        self.prompt + self.drawn
    }

    fn name(&self) -> String {
        let name = if self.drawn > 0 { format!("tg{}", self.drawn) } else { format!("pp{}", self.prompt) };
        if self.depth > 0 { format!("{name} @ d{}", self.depth) } else { name }
    }

    /// Depth, tokens and whether logits are wanted of each step.
    fn steps(&self, batch: usize) -> Vec<(usize, usize, bool)> {
        let drawn = (self.depth..self.depth + self.drawn).map(|depth| (depth, 1, true));
        let prompt = (0..self.prompt).step_by(batch).map(|at| {
            let n = (self.prompt - at).min(batch);
            (self.depth + at, n, at + n == self.prompt)
        });
        drawn.chain(prompt).collect()
    }
}

fn run_model(options: &Options) -> Result<Report> {
    let tests = Test::all(options);
    let Some(context) = tests.iter().map(|test| test.depth.saturating_add(test.tokens())).max() else {
        return Err(Error::request("tests", "a number of -p or -n above 0", "none"));
    };
    let weights = options.model.open()?;
    let trained = Config::read(&weights)?.context;
    if context > trained {
        let expected = format!("at most {trained}, which the model was trained for");
        return Err(Error::request("tokens of -d and -p or -n", expected, context));
    }
    let mut engine = options.engine.load(&weights, context)?;
    describe(&weights, &engine, &[]);
    if context > engine.capacity().context {
        let expected = format!("at most {}, the context", engine.capacity().context);
        return Err(Error::request("tokens of -d and -p or -n", expected, context));
    }
    let _stoppable = Stoppable::new();
    let peaks = engine.gpu().map(Peaks::measure).transpose()?;
    let mut report = Report::new(Device::of(engine.gpu().map(|gpu| gpu.caps()), engine.tile()), peaks);
    report.model = Some(Model::of(&weights, engine.config()));
    report.settings = Some(Settings::of(engine.capacity()));
    drop(weights);

    let mut tokens = Tokens { next: 1, vocab: engine.config().vocab };
    let mut session = options.engine.session(&engine)?;
    for test in tests {
        note(format_args!("{}: {} runs", test.name(), options.repetitions));
        // Tests share what is before them.
        session.push(&tokens.take(test.depth.saturating_sub(session.tokens().len())));
        prefill(&mut engine, &mut session)?;
        session.rewind(test.depth);
        if !options.no_warmup {
            let few = Test { drawn: test.drawn.min(1), ..test };
            time(&mut engine, &mut session, few, &mut tokens)?;
        }
        let mut seconds = Vec::new();
        for _ in 0..options.repetitions {
            if interrupted() {
                return Ok(report);
            }
            seconds.push(time(&mut engine, &mut session, test, &mut tokens)?);
        }
        let steps = test.steps(engine.capacity().tokens).into_iter();
        let costs: Vec<_> = steps.flat_map(|(depth, n, output)| engine.costs(depth, n, output)).collect();
        report.results.push(Row::new(test.name(), test.tokens(), 0, seconds, &costs, peaks.as_ref()));
        if options.profile {
            session.push(&tokens.take(if test.drawn > 0 { 1 } else { test.prompt }));
            let session = std::mem::replace(&mut session, options.engine.session(&engine)?);
            report.profile.extend(profile(&mut engine, session, test, peaks.as_ref())?);
        }
    }
    Ok(report)
}

/// Seconds of one run. The session is as before afterwards, with `depth` tokens computed.
fn time(engine: &mut Engine, session: &mut Session, test: Test, tokens: &mut Tokens) -> Result<f64> {
    session.push(&tokens.take(if test.drawn > 0 { 1 } else { test.prompt }));
    let began = Instant::now();
    if test.drawn > 0 {
        let mut drawn = 0;
        engine.decode(&mut [session], test.drawn, |_| {
            drawn += 1;
            if interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        // The context was sized for all of them.
        if drawn < test.drawn && !interrupted() {
            return Err(Error::request("tokens drawn", test.drawn, drawn));
        }
    } else {
        prefill(engine, session)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    session.rewind(test.depth);
    Ok(seconds)
}

/// Computes all pending tokens, unless Ctrl-C was pressed.
fn prefill(engine: &mut Engine, session: &mut Session) -> Result<()> {
    while !session.pending().is_empty() && !interrupted() {
        if engine.step(&mut [session])?[0].is_some() {
            break;
        }
    }
    Ok(())
}

/// Rows of the kernels of the test's first step, whose tokens are pending.
fn profile(engine: &mut Engine, mut session: Session, test: Test, peaks: Option<&Peaks>) -> Result<Vec<Row>> {
    let n = session.pending().len().min(engine.capacity().tokens);
    let step = if test.depth > 0 { format!("step of {n} @ d{}", test.depth) } else { format!("step of {n}") };
    note(format_args!("{step}: kernels"));
    let budget = engine.gpu().map_or(Duration::ZERO, |gpu| budget(gpu.caps().kind));
    if test.drawn > 0 && engine.gpu().is_some() {
        let mut seconds = engine.host_seconds(&mut session, HOST_STEPS)?;
        seconds.sort_by(f64::total_cmp);
        let [least, median] = [seconds[0], seconds[HOST_STEPS / 2]].map(|seconds| 1e3 * seconds);
        note(format_args!(
            "{step}: the host takes {median:.2} ms ({least:.2} at least) to write, encode and submit it"
        ));
    }
    let kernels = engine.profile(session, budget)?;
    let row = |kernel: Profiled| {
        let name = format!("{step}: {}", kernel.label);
        Row::new(name, 0, kernel.costs.len(), kernel.seconds, &kernel.costs, peaks)
    };
    Ok(kernels.into_iter().map(row).collect())
}

fn budget(kind: Kind) -> Duration {
    if kind == Kind::Software { ON_SOFTWARE } else { ON_GPU }
}

fn time_kernels(options: &Options, kernels: &[String]) -> Result<Report> {
    let named = options.shapes.iter().map(|name| Shape::named(name)).collect::<Result<Vec<_>>>()?;
    let gpu = options.engine.gpu()?;
    let shapes = match named.as_slice() {
        [] if gpu.caps().kind == Kind::Software => vec![Shape::named("1b")?],
        [] => bench::SHAPES.iter().collect(),
        _ => named,
    };
    note(format_args!("device  {}", one_line(&gpu.caps().to_string())));
    let cases: Vec<_> = shapes.iter().map(|shape| bench::cases(&gpu, shape, kernels)).collect::<Result<_>>()?;
    let _stoppable = Stoppable::new();
    let peaks = Peaks::measure(&gpu)?;
    let mut report = Report::new(Device::of(Some(gpu.caps()), tile(Some(gpu.caps()))), Some(peaks));
    for case in cases.into_iter().flatten() {
        if interrupted() {
            break;
        }
        note(&case.name);
        if options.engine.memory_limit().is_some_and(|limit| case.bytes() > limit) {
            note(format_args!("  left out: {} MiB are more than --memory-limit", mib(case.bytes())));
            continue;
        }
        let buffers = match case.allocate(&gpu) {
            Err(e @ Error::OutOfMemory { .. }) => {
                note(format_args!("  left out: {}", one_line(&e.to_string())));
                continue;
            }
            other => other?,
        };
        let mut prepared = gpu.prepare(&buffers, &[&case.program])?;
        let seconds = gpu.measure(&buffers, &mut prepared[0], &case.step, budget(gpu.caps().kind))?;
        let dispatches = case.program.dispatches.len();
        report.results.push(Row::new(case.name.clone(), 0, dispatches, seconds, &case.costs(), Some(&peaks)));
    }
    Ok(report)
}

/// Tokens drawn at random, the same ones in every run of the program.
struct Tokens {
    next: u64,
    vocab: usize,
}

impl Tokens {
    /// Knuth's MMIX generator.
    fn take(&mut self, n: usize) -> Vec<u32> {
        let next = |_| {
            self.next = self.next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.next >> 33) % self.vocab as u64) as u32
        };
        (0..n).map(next).collect()
    }
}
