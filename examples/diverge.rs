//! Runs a prompt on a GPU and through the references, dispatch by dispatch, and names the first that differs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use farpast::engine::{Backend, Diverge, EngineOptions};
use farpast::gpu::DeviceOptions;
use farpast::memory::Element;
use farpast::text::Special;
use farpast::weights::Weights;
use farpast::{Result, chat, fetch};
use indicatif::{ProgressBar, ProgressStyle};

/// Find the first dispatch of a model that a GPU computes wrong.
#[derive(Parser)]
struct Options {
    /// GGUF file of the model; without it, the one that the example chat fetches
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// What is run, as plain text
    #[arg(short, long, default_value = "The capital of France is")]
    prompt: String,
    /// Decode steps after the prompt
    #[arg(short, default_value_t = 2)]
    n: usize,
    /// Largest |gpu - reference| / (1 + |reference|)
    #[arg(long, default_value_t = 1e-3)]
    tolerance: f64,
    /// GPU by index or part of its name
    #[arg(long, value_name = "NAME|INDEX")]
    device: Option<String>,
    /// How keys and values are stored
    #[arg(long, value_parser = ["f16", "f32"], default_value = "f16")]
    kv: String,
    /// Run shaders with bounds checks
    #[arg(long)]
    checked: bool,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("error: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<ExitCode> {
    let path = match &options.model {
        Some(path) => path.clone(),
        None => fetch::cache_folder()?.join("models").join(fetch::MODELS[0].file),
    };
    let weights = Weights::open(&path)?;
    let tokenizer = chat::tokenizer(&weights)?;
    let tokens = tokenizer.with_bos(tokenizer.encode(&options.prompt, Special::Parse)?);
    let mut diverge = Diverge::load(
        &weights,
        &EngineOptions {
            backend: Backend::Gpu(DeviceOptions {
                device: options.device.clone(),
                checked: options.checked,
                ..Default::default()
            }),
            context: tokens.len() + options.n,
            kv: if options.kv == "f32" { Element::F32 } else { Element::F16 },
            batch: 64,
            ..EngineOptions::default()
        },
    )?;
    println!("{} against the references: {} tokens of prompt", diverge.device(), tokens.len());
    let style =
        ProgressStyle::with_template("{wide_bar} {pos} of {len} dispatches").expect("the template is a constant");
    let bar = ProgressBar::new(0).with_style(style);
    let report = diverge.run(&tokens, options.n, options.tolerance, |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let report = report?;
    if let Some(first) = report.first {
        println!("{} dispatches agree; the first that differs is {first}", report.dispatches - 1);
        return Ok(ExitCode::FAILURE);
    }
    println!("All {} dispatches agree. The largest error of each kernel:", report.dispatches);
    for worst in report.worst.values() {
        println!("{:20} {:.2e}  {}", worst.kernel, worst.error, worst.tensor);
    }
    Ok(ExitCode::SUCCESS)
}
