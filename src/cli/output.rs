//! What goes to standard output, and how it is written.

use std::fmt::Display;
use std::io::{self, IsTerminal, Stdout, Write};
use std::ops::ControlFlow;

use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::interrupt::interrupted;
use crate::error::{Error, Result};

/// Writes `text` to standard output.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(unwritable)
}

/// Writes one line of JSON to standard output.
pub fn print_json(value: &Value) -> Result<()> {
    print(&format!("{value}\n"))
}

/// Writes a line to standard error; nothing else can be done where that is closed.
pub fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Text of a model on its way to standard output.
pub struct Stream {
    out: Stdout,
    written: io::Result<()>,
}

impl Stream {
    pub fn new() -> Self {
        Self { out: io::stdout(), written: Ok(()) }
    }

    /// Breaks off when Ctrl-C was pressed or nobody reads.
    pub fn write(&mut self, piece: &str) -> ControlFlow<()> {
        // A model's text must not steer the terminal.
        let shown: String = match self.out.is_terminal() {
            true => piece.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect(),
            false => piece.into(),
        };
        if self.written.is_ok() {
            self.written = self.out.write_all(shown.as_bytes()).and_then(|()| self.out.flush());
        }
        if self.written.is_err() || interrupted() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Ends the text with a line break where `newline`, or where it is a terminal's prompt that follows.
    pub fn finish(mut self, newline: bool) -> Result<()> {
        let end = if newline || self.out.is_terminal() { "\n" } else { "" };
        self.written.and_then(|()| self.out.write_all(end.as_bytes())).map_err(unwritable)
    }
}

fn unwritable(source: io::Error) -> Error {
    Error::Io { path: "standard output".into(), source }
}

/// A bar of bytes on standard error. Draws nothing where that is no terminal.
pub fn bar_of_bytes() -> ProgressBar {
    bar("{msg} {wide_bar} {bytes} of {total_bytes}, {eta} left")
}

/// A bar on standard error. Draws nothing where that is no terminal.
pub fn bar(template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    ProgressBar::new(0).with_style(style.expect("the template is a constant"))
}

pub fn mib(bytes: usize) -> usize {
    bytes.div_ceil(1 << 20)
}

/// Text of a file or driver without what would break the line or steer the terminal.
pub fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
