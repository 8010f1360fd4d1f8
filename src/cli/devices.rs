//! `devices`: what can be given to `--device`.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::output::{mib, one_line, print, print_json};
use crate::engine::{candidates, tile};
use crate::error::Result;
use crate::gpu;

/// Print the devices that models can run on, best first
#[derive(Args)]
pub struct Options {
    /// Print one JSON object for each device
    #[arg(long)]
    json: bool,
    /// Print what each can do, too
    #[arg(short, long, conflicts_with = "json")]
    verbose: bool,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    if options.verbose {
        return describe();
    }
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
            "subgroup": caps.subgroup,
            "matrices": caps.matrices.map(|m| m.shape.to_string()),
            "timestamps": caps.timestamps,
            "tile": tile(Some(caps)).to_string(),
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

fn describe() -> Result<ExitCode> {
    for (i, caps) in gpu::adapters().iter().enumerate() {
        let subgroups = match caps.subgroup {
            0 => "none".into(),
            lanes => format!("of {lanes} lanes at least"),
        };
        let matrices = caps.matrices.map_or_else(|| "none".into(), |m| m.shape.to_string());
        print(&format!(
            "{i}: {}\n   bindings of {} MiB; subgroups: {subgroups}; cooperative matrices: {matrices}; kernels timed by {} clock\n   {}, unless tuning takes one of {} others\n",
            one_line(&caps.to_string()),
            mib(caps.max_binding),
            if caps.timestamps { "the device's" } else { "the host's" },
            tile(Some(caps)),
            candidates(caps).len() - 1,
        ))?;
    }
    print("cpu: the reference of every kernel, slow\n")?;
    Ok(ExitCode::SUCCESS)
}
