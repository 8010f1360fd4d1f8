//! `inspect --aoc`: how the heads of a model do with anchors of the far past, measured on a text.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value as Json, json};

use super::super::interrupt::{Stoppable, exit_code, interrupted};
use super::super::model::{EngineArgs, describe};
use super::super::output::{bar, print, print_json};
use crate::attention::aoc::Head;
use crate::chat::tokenizer;
use crate::error::{Error, Result};
use crate::kernels::Cover;
use crate::text::Special;
use crate::weights::Weights;

/// Without `-c`, so many tokens of the text are read.
const CONTEXT: usize = 2048;

/// Runs the text through the model and prints what was measured of its heads; draws it to `svg`.
pub fn run(
    weights: &Weights,
    engine: &EngineArgs,
    text: &Path,
    svg: Option<&PathBuf>,
    as_json: bool,
) -> Result<ExitCode> {
    let args = engine.with_aoc();
    let tokenizer = tokenizer(weights)?;
    let text = std::fs::read_to_string(text).map_err(Error::io(text))?;
    let tokens = tokenizer.with_bos(tokenizer.encode(&text, Special::AsText)?);
    let mut engine = args.load(weights, CONTEXT)?;
    describe(weights, &engine, tokenizer.warnings());
    let mut session = args.session(&engine)?;
    let tokens = &tokens[..tokens.len().min(engine.capacity().context)];

    let progress = bar("{wide_bar} {pos} of {len} tokens, {eta} left");
    progress.set_length(tokens.len() as u64);
    {
        let _stoppable = Stoppable::new();
        for some in tokens.chunks(engine.capacity().tokens) {
            if interrupted() {
                return Ok(exit_code());
            }
            session.push(some);
            engine.each_logits(&mut session, usize::MAX, |_, _| ())?;
            progress.inc(some.len() as u64);
        }
    }
    progress.finish_and_clear();
    let heads = session.heads();
    if heads.is_empty() {
        let expected = "so many tokens that more than --aoc-budget of them leave the near past";
        return Err(Error::request("text", expected, tokens.len()));
    }
    let kv_heads = engine.config().attention.kv_heads;
    if let Some(path) = svg {
        std::fs::write(path, drawn(&heads, kv_heads)).map_err(Error::io(path))?;
    }
    match as_json {
        true => print_json(&json!({
            "tokens": tokens.len(),
            "far": session.far(),
            "widths": Cover::TRIALS,
            "heads": heads.iter().enumerate().map(|(i, head)| to_json(i, head, kv_heads)).collect::<Vec<_>>(),
        }))?,
        false => print(&table(&heads, kv_heads))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn to_json(i: usize, head: &Head, kv_heads: usize) -> Json {
    json!({
        "layer": i / kv_heads,
        "head": i % kv_heads,
        "rank": head.rank,
        "errors": head.errors,
        "width": head.width,
        "alone": head.alone,
    })
}

fn table(heads: &[Head], kv_heads: usize) -> String {
    let mut out = String::from("layer  head   r_Σ ");
    Cover::TRIALS.iter().for_each(|width| write!(out, "  error@{width}").expect("writing to a string"));
    out.push_str("  mode         A0\n");
    for (i, head) in heads.iter().enumerate() {
        let mode = if head.width == 0 { "dense".into() } else { format!("width {}", head.width) };
        let errors: String = head.errors.iter().map(|error| format!("  {error:8.4}")).collect();
        let (layer, alone) = (i / kv_heads, 100.0 * head.alone);
        writeln!(out, "{layer:5}  {:4}  {:5.1}{errors}  {mode:9}  {alone:3.0} %", i % kv_heads, head.rank)
            .expect("writing to a string");
    }
    let dense = heads.iter().filter(|head| head.width == 0).count();
    writeln!(out, "{dense} of {} heads read all rows", heads.len()).expect("writing to a string");
    out
}

/// A cell for each head, darker with its error at the widest width, framed where it reads all rows.
fn drawn(heads: &[Head], kv_heads: usize) -> String {
    const CELL: usize = 18;
    const LEFT: usize = 70;
    const TOP: usize = 40;
    let layers = heads.len() / kv_heads;
    let (width, height) = (LEFT + layers * CELL + 20, TOP + kv_heads * CELL + 60);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" \
         font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{LEFT}\" y=\"18\">error of anchored attention by layer and KV head (white 0, dark 1); framed: reads all rows</text>\n"
    );
    for (i, head) in heads.iter().enumerate() {
        let (x, y) = (LEFT + i / kv_heads * CELL, TOP + i % kv_heads * CELL);
        let error = head.errors[Cover::TRIALS.len() - 1];
        let shade = 255 - (255.0 * error.clamp(0.0, 1.0).sqrt()) as u8;
        let frame = if head.width == 0 { " stroke=\"crimson\" stroke-width=\"2\"" } else { "" };
        let size = CELL - 2;
        writeln!(
            out,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{size}\" height=\"{size}\" fill=\"rgb({shade},{shade},255)\"{frame}>\
             <title>layer {}, head {}: error {error:.4}, r_Σ {:.1}</title></rect>",
            i / kv_heads,
            i % kv_heads,
            head.rank
        )
        .expect("writing to a string");
    }
    for layer in (0..layers).step_by(5) {
        let (x, y) = (LEFT + layer * CELL, TOP + kv_heads * CELL + 14);
        writeln!(out, "<text x=\"{x}\" y=\"{y}\">{layer}</text>").expect("writing to a string");
    }
    for head in 0..kv_heads {
        let y = TOP + head * CELL + 12;
        writeln!(out, "<text x=\"20\" y=\"{y}\">head {head}</text>").expect("writing to a string");
    }
    out.push_str("</svg>\n");
    out
}
