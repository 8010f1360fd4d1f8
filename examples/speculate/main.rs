//! Decoding with drafts looked up beside decoding without, of answers that are mostly copies of their prompts and one that is not; and
//! what a step of several rows of logits costs. Timed in turn, the least time of each counts.
//!
//! usage: `cargo run --release --example speculate -- [FILE [DRAWN [ROUNDS]]]`

use std::ops::ControlFlow;
use std::time::Instant;

use farpast::chat::tokenizer;
use farpast::engine::{Engine, EngineOptions};
use farpast::fetch;
use farpast::session::Session;
use farpast::speculation::{DraftCounts, Speculation};
use farpast::text::{Special, Tokenizer};
use farpast::weights::Weights;

/// What to copy with one change, of which the answer to the first has begun; and nothing to copy.
const PROMPTS: [(&str, &str); 3] =
    [("code", include_str!("code.txt")), ("prose", include_str!("prose.txt")), ("free", include_str!("free.txt"))];

/// Rows of steps.
const ROWS: [usize; 6] = [1, 2, 4, 8, 12, 16];

fn main() -> farpast::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, usual| arguments.get(i).and_then(|text| text.parse().ok()).unwrap_or(usual);
    let file = match arguments.first() {
        Some(file) => file.into(),
        None => {
            let smallest = &fetch::MODELS[0];
            smallest.fetch(&fetch::cache_folder()?.join("models"), fetch::PIPS, |_| ControlFlow::Continue(()))?
        }
    };
    let (drawn, rounds) = (number(1, 250), number(2, 3));
    let weights = Weights::open(file)?;
    let tokenizer = tokenizer(&weights)?;
    let options = EngineOptions { context: 2048, batch: 128, ..Default::default() };
    let mut engine = Engine::load(&weights, &options, |_| ())?;
    println!("{}", engine.device());
    for (name, prompt) in PROMPTS {
        let prompt = tokenizer.with_bos(tokenizer.encode(prompt, Special::Parse)?);
        let mut session = engine.session();
        session.push(&prompt);
        while engine.step(&mut [&mut session])?[0].is_none() {}
        let (first, mut best, mut counts) = (session.tokens().len(), [f64::INFINITY; 2], DraftCounts::default());
        let mut answers = [const { Vec::new() }; 2];
        for _ in 0..rounds {
            for (i, speculation) in [None, Some(Speculation::default())].into_iter().enumerate() {
                session.rewind(first);
                session.speculation = speculation;
                let before = engine.draft_counts();
                best[i] = best[i].min(answer(&mut engine, &mut session, drawn, &tokenizer)?);
                answers[i] = session.tokens()[first - 1..].to_vec();
                let after = engine.draft_counts();
                counts.drafted = after.drafted - before.drafted;
                counts.accepted = after.accepted - before.accepted;
            }
        }
        assert!(answers[0] == answers[1], "drafts change nothing but the time");
        println!("{}\n", tokenizer.decode(&answers[0]));
        let DraftCounts { drafted, accepted, .. } = counts;
        let [without, with] = best.map(|seconds| (answers[0].len() - 1) as f64 / seconds);
        println!(
            "{name}: {} tokens, {accepted} of {drafted} guessed ones accepted: {without:.1} tokens/s without, {with:.1} with \
             drafts: {:.2} times",
            answers[0].len() - 1,
            with / without
        );
    }

    let (mut session, mut best) = (engine.session(), [f64::INFINITY; ROWS.len()]);
    let prompt = tokenizer.encode(PROMPTS[0].1, Special::Parse)?;
    for _ in 0..2 * rounds {
        for (best, rows) in best.iter_mut().zip(ROWS) {
            session.set_tokens(&prompt[..prompt.len() - rows]);
            while engine.step(&mut [&mut session])?[0].is_none() {}
            session.set_tokens(&prompt);
            let began = Instant::now();
            engine.logits(&mut session)?;
            *best = best.min(began.elapsed().as_secs_f64());
        }
    }
    let costs = ROWS.iter().zip(best).map(|(rows, seconds)| format!("{rows}: {:.2}", seconds / best[0]));
    println!("steps of so many rows, of the time of one: {}", costs.collect::<Vec<_>>().join(", "));
    Ok(())
}

/// Seconds of up to `drawn` tokens more.
fn answer(engine: &mut Engine, session: &mut Session, drawn: usize, tokenizer: &Tokenizer) -> farpast::Result<f64> {
    let began = Instant::now();
    engine.decode(&mut [session], drawn, |ids| match tokenizer.stop_ids().contains(&ids[0]) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    })?;
    Ok(began.elapsed().as_secs_f64())
}
