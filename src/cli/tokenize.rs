//! `tokenize`: tokens of a text.

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::input::TextArgs;
use super::model::ModelArgs;
use super::output::{note, one_line, print, print_json};
use crate::chat::tokenizer;
use crate::error::Result;
use crate::text::Special;

/// Print the tokens of a text, one a line
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    text: TextArgs,
    /// Print the ids alone, as a list
    #[arg(long)]
    ids: bool,
    /// Without the first token that the model wants before a text
    #[arg(long)]
    no_bos: bool,
    /// Control tokens in the text count as such
    #[arg(long)]
    parse_special: bool,
    /// Print how many tokens there are at the end
    #[arg(long)]
    show_count: bool,
    /// Print one JSON object: each token's id, spelling in the vocabulary and text, and how many there are
    #[arg(long, conflicts_with_all = ["ids", "show_count"])]
    json: bool,
}

pub fn run(options: &Options) -> Result<ExitCode> {
    let text = TextArgs::required(options.text.read()?)?;
    let tokenizer = tokenizer(&options.model.open()?)?;
    for warning in tokenizer.warnings() {
        note(format_args!("note: {}", one_line(warning)));
    }
    let special = if options.parse_special { Special::Parse } else { Special::AsText };
    let ids = tokenizer.encode(&text, special)?;
    let ids = if options.no_bos { ids } else { tokenizer.with_bos(ids) };
    let text = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
    if options.json {
        let tokens = ids.iter().map(|&id| json!({ "id": id, "token": tokenizer.token(id), "text": text(id) }));
        print_json(&json!({ "tokens": tokens.collect::<Vec<_>>(), "count": ids.len() }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = String::new();
    match options.ids {
        true => writeln!(out, "{ids:?}"),
        false => ids.iter().try_for_each(|&id| writeln!(out, "{id:>7} {:?}", text(id))),
    }
    .expect("writing to a string");
    if options.show_count {
        writeln!(out, "{} tokens", ids.len()).expect("writing to a string");
    }
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}
