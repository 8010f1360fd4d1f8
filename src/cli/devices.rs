//! `devices`: what can be given to `--device`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::output::{one_line, print, print_json};
use crate::error::Result;
use crate::gpu;

/// Print the devices that models can run on, best first
#[derive(Args)]
pub struct Options {
    /// Print one JSON object for each device
    #[arg(long)]
    json: bool,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    if !options.json {
        return list();
    }
    for (i, caps) in gpu::adapters().iter().enumerate() {
        print_json(&json!({
            "device": i.to_string(),
            "name": caps.name,
            "kind": caps.kind.to_string(),
            "backend": caps.backend,
            "driver": caps.driver,
            "max_binding": caps.max_binding,
        }))?;
    }
    print_json(&json!({ "device": "cpu", "name": "CPU interpreter" }))?;
    Ok(ExitCode::SUCCESS)
}

pub fn list() -> Result<ExitCode> {
    for (i, caps) in gpu::adapters().iter().enumerate() {
        print(&format!("{i}: {}\n", one_line(&caps.to_string())))?;
    }
    print("cpu: the reference of every kernel, slow\n")?;
    Ok(ExitCode::SUCCESS)
}
