//! What commands are asked to work on, and how tokens are drawn.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;

use clap::Args;

use crate::error::{Error, Result};
use crate::sampler::Sampling;

/// Text of a user.
#[derive(Args)]
pub struct TextArgs {
    /// The text; else it is what is piped in
    #[arg(short, long, value_name = "TEXT", conflicts_with = "file")]
    prompt: Option<String>,
    /// A file of UTF-8 with the text
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

impl TextArgs {
    /// The text as it is; `None` when there is none and standard input is a terminal.
    pub fn read(&self) -> Result<Option<String>> {
        if let Some(prompt) = &self.prompt {
            return Ok(Some(prompt.clone()));
        }
        if let Some(file) = &self.file {
            return fs::read_to_string(file).map_err(Error::io(file)).map(Some);
        }
        if io::stdin().is_terminal() {
            return Ok(None);
        }
        let mut text = String::new();
        let read = io::stdin().read_to_string(&mut text);
        read.map_err(|source| Error::Io { path: "standard input".into(), source })?;
        Ok(Some(text))
    }

    /// As [`read`](Self::read), without the line break at the end of a file.
    pub fn read_prompt(&self) -> Result<Option<String>> {
        let end: &[char] = if self.prompt.is_some() { &[] } else { &['\r', '\n'] };
        Ok(self.read()?.map(|text| text.trim_end_matches(end).into()))
    }

    /// The text that a command needs.
    pub fn required(text: Option<String>) -> Result<String> {
        text.ok_or_else(|| Error::request("text", "-p TEXT, -f FILE or some piped in", "none"))
    }
}

/// How tokens are drawn.
#[derive(Args)]
pub struct SamplingArgs {
    /// 0 takes the most likely token always
    #[arg(long, default_value_t = 0.8, value_parser = temperature)]
    temp: f32,
    /// Draw from this many of the most likely tokens; 0 takes all
    #[arg(long, value_name = "TOKENS", default_value_t = 40)]
    top_k: u32,
    /// Draw from the most likely tokens of this probability together
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.95, value_parser = probability)]
    top_p: f32,
    /// Same seed, same answers; random without it
    #[arg(short, long)]
    seed: Option<u64>,
    /// Most tokens to draw; -1 sets no limit
    #[arg(
        short = 'n',
        long,
        visible_alias = "n-predict",
        value_name = "TOKENS",
        default_value_t = -1,
        allow_negative_numbers = true
    )]
    predict: i64,
}

impl SamplingArgs {
    pub fn sampling(&self) -> Sampling {
        use std::hash::{BuildHasher, RandomState};
        let random = || RandomState::new().hash_one(0);
        let seed = self.seed.unwrap_or_else(random);
        Sampling { temperature: self.temp, top_k: self.top_k, top_p: self.top_p, seed, ..Sampling::default() }
    }

    /// Most tokens to draw.
    pub fn limit(&self) -> Option<usize> {
        usize::try_from(self.predict).ok()
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    let t: f32 = text.parse().map_err(|e| format!("{e}"))?;
    if (0.0..=100.0).contains(&t) { Ok(t) } else { Err("expected 0 to 100".into()) }
}

fn probability(text: &str) -> Result<f32, String> {
    let p: f32 = text.parse().map_err(|e| format!("{e}"))?;
    if p > 0.0 && p <= 1.0 { Ok(p) } else { Err("expected more than 0, at most 1".into()) }
}
