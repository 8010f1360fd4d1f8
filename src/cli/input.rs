//! What commands are asked to work on, and how tokens are drawn.

use std::fs;
use std::io::{self, IsTerminal, Read};
use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;

use crate::constrain::{Constraint, Grammar, Grammars};
use crate::error::{Error, Result};
use crate::sampler::{BREAKERS, Dry, Penalties, Sampling, TokenSet};
use crate::text::Tokenizer;

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
    /// Draw from the tokens of most typical surprise of this probability together
    #[arg(long, visible_alias = "typical-p", value_name = "PROBABILITY", default_value_t = 1.0, value_parser = probability)]
    typical: f32,
    /// Draw from the most likely tokens of this probability together
    #[arg(long, value_name = "PROBABILITY", default_value_t = 0.95, value_parser = probability)]
    top_p: f32,
    /// Draw from tokens of at least this share of the likeliest one's probability
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    min_p: f32,
    /// The last tokens, the prompt's too, that penalties count; -1 counts 4096
    #[arg(long, value_name = "TOKENS", default_value_t = 64, allow_negative_numbers = true)]
    repeat_last_n: i64,
    /// Divides logits above 0 of tokens that came before, and multiplies others; 1 does nothing
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = factor)]
    repeat_penalty: f32,
    /// Subtracted from the logit of a token that came before
    #[arg(long, value_name = "LOGIT", default_value_t = 0.0, allow_negative_numbers = true, value_parser = logit)]
    presence_penalty: f32,
    /// Subtracted for each time that it came
    #[arg(long, value_name = "LOGIT", default_value_t = 0.0, allow_negative_numbers = true, value_parser = logit)]
    frequency_penalty: f32,
    /// What a token loses that would go on repeating an earlier sequence; 0 does nothing
    #[arg(long, value_name = "LOGIT", default_value_t = 0.0, value_parser = temperature)]
    dry_multiplier: f32,
    /// By which that grows with each token of the repetition
    #[arg(long, value_name = "FACTOR", default_value_t = Dry::default().base, value_parser = base)]
    dry_base: f32,
    /// Repetitions of fewer tokens lose nothing
    #[arg(long, value_name = "TOKENS", default_value_t = Dry::default().allowed_length)]
    dry_allowed_length: usize,
    /// The last tokens that are looked at for repetitions; -1 looks at 4096
    #[arg(long, value_name = "TOKENS", default_value_t = -1, allow_negative_numbers = true)]
    dry_penalty_last_n: i64,
    /// No repetition goes across a token that contains this; several times for several, none for no such text. Without it: line
    /// breaks, colons, quotation marks and asterisks
    #[arg(long, value_name = "TEXT")]
    dry_sequence_breaker: Vec<String>,
    /// Adds to the logit of a token, such as 15043+1 or 15043-1; several times for several
    #[arg(short, long, value_name = "TOKEN+LOGIT", value_parser = bias)]
    logit_bias: Vec<(u32, f32)>,
    /// What is drawn is JSON that this schema describes
    #[arg(short, long, value_name = "SCHEMA", conflicts_with_all = ["json_schema_file", "grammar", "grammar_file"])]
    json_schema: Option<String>,
    /// The same, from a file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["grammar", "grammar_file"])]
    json_schema_file: Option<PathBuf>,
    /// What is drawn follows this grammar, in llguidance's variant of Lark
    #[arg(long, value_name = "GRAMMAR", conflicts_with = "grammar_file")]
    grammar: Option<String>,
    /// The same, from a file
    #[arg(long, value_name = "FILE")]
    grammar_file: Option<PathBuf>,
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
    /// Texts that break sequences are looked for in the tokens of `tokenizer`.
    pub fn sampling(&self, tokenizer: &Tokenizer) -> Sampling {
        use std::hash::{BuildHasher, RandomState};
        let random = || RandomState::new().hash_one(0);
        let seed = self.seed.unwrap_or_else(random);
        let count = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
        let breakers = match self.dry_sequence_breaker.as_slice() {
            [] => tokenizer.containing(&BREAKERS).collect(),
            [none] if none == "none" => TokenSet::default(),
            texts => tokenizer.containing(texts).collect(),
        };
        Sampling {
            temperature: self.temp,
            top_k: self.top_k,
            typical_p: self.typical,
            top_p: self.top_p,
            min_p: self.min_p,
            penalties: Penalties {
                last_n: count(self.repeat_last_n),
                repeat: self.repeat_penalty,
                frequency: self.frequency_penalty,
                presence: self.presence_penalty,
            },
            dry: Dry {
                multiplier: self.dry_multiplier,
                base: self.dry_base,
                allowed_length: self.dry_allowed_length,
                last_n: count(self.dry_penalty_last_n),
                breakers,
            },
            logit_bias: self.logit_bias.clone(),
            seed,
        }
    }

    /// What is drawn must follow it, if it must follow anything.
    pub fn constraint(&self, tokenizer: &Tokenizer, vocab: usize) -> Result<Option<Constraint>> {
        let read = |file: &PathBuf| fs::read_to_string(file).map_err(Error::io(file));
        let text = |text: &Option<String>, file: &Option<PathBuf>| match (text, file) {
            (Some(text), _) => Ok(Some(text.clone())),
            (None, file) => file.as_ref().map(read).transpose(),
        };
        let grammar = match text(&self.json_schema, &self.json_schema_file)? {
            Some(schema) => {
                let schema = serde_json::from_str(&schema);
                Some(Grammar::JsonSchema(schema.map_err(|e| Error::request("JSON schema", "JSON", e))?))
            }
            None => text(&self.grammar, &self.grammar_file)?.map(Grammar::Lark),
        };
        grammar.map(|grammar| Grammars::new(tokenizer, vocab)?.constraint(&grammar)).transpose()
    }

    /// Most tokens to draw.
    pub fn limit(&self) -> Option<usize> {
        usize::try_from(self.predict).ok()
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    number(text, 0.0..=100.0, "0 to 100")
}

fn share(text: &str) -> Result<f32, String> {
    number(text, 0.0..=1.0, "0 to 1")
}

fn factor(text: &str) -> Result<f32, String> {
    number(text, 1e-3..=1e3, "0.001 to 1000")
}

fn base(text: &str) -> Result<f32, String> {
    number(text, 1.0..=1e3, "1 to 1000")
}

fn logit(text: &str) -> Result<f32, String> {
    number(text, -1e3..=1e3, "-1000 to 1000")
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let at = text.find(['+', '-']).ok_or("expected a token's id, + or -, and a number")?;
    let (id, bias) = text.split_at(at);
    Ok((id.parse().map_err(|e| format!("{id:?}: {e}"))?, logit(bias)?))
}

fn number(text: &str, allowed: RangeInclusive<f32>, expected: &str) -> Result<f32, String> {
    let number = text.parse().map_err(|e| format!("{e}"))?;
    if allowed.contains(&number) { Ok(number) } else { Err(format!("expected {expected}")) }
}

fn probability(text: &str) -> Result<f32, String> {
    let p: f32 = text.parse().map_err(|e| format!("{e}"))?;
    if p > 0.0 && p <= 1.0 { Ok(p) } else { Err("expected more than 0, at most 1".into()) }
}
