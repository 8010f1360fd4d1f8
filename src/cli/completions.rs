//! `completions`: a script that completes the command line in a shell.

use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::output::print;
use crate::error::Result;

/// Print a script that completes this command line in a shell
#[derive(Args)]
pub struct Options {
    shell: Shell,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut super::Options::command(), "farpast", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
