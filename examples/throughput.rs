//! Requests at once beside one alone, and a long prefix recalled beside one computed; timed in turn, the least time of each counts.
//!
//! usage: `cargo run --release --example throughput -- [FILE [REQUESTS [PROMPT [DRAWN [ROUNDS]]]]]`

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use farpast::chat::tokenizer;
use farpast::engine::{Engine, EngineOptions};
use farpast::fetch;
use farpast::scheduler::{Event, Handle, Limits, Request, Scheduler};
use farpast::weights::Weights;

/// Tokens of the prefix.
const PREFIX: usize = 1000;

fn main() -> farpast::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize, usual| arguments.get(i).and_then(|text| text.parse().ok()).unwrap_or(usual);
    let file = match arguments.first() {
        Some(file) => file.into(),
        None => {
            let smallest = &fetch::MODELS[0];
            smallest
                .fetch(&fetch::cache_folder()?.join("models"), fetch::PIPS, |_| std::ops::ControlFlow::Continue(()))?
        }
    };
    let (requests, prompt, drawn, rounds) = (number(1, 8), number(2, 128), number(3, 64), number(4, 3));
    let weights = Weights::open(file)?;
    let tokenizer = Arc::new(tokenizer(&weights)?);
    let context = (PREFIX + 64).max(prompt + drawn);
    let options = EngineOptions { sequences: requests, context, batch: 128, ..Default::default() };
    let load = move || Engine::load(&weights, &options, |_| ());
    let (scheduler, handle) = Scheduler::new(load, tokenizer, Limits { waiting: 10_000, ..Limits::default() })?;
    println!("{}", scheduler.engine().map_or_else(String::new, Engine::device));
    let thread = std::thread::spawn(move || scheduler.run());

    // Every prompt differs from all before in its first token, so that nothing is recalled.
    let mut next = 0;
    let mut tokens = |n: usize| {
        next += 1;
        (0..n as u32).map(|i| 1000 + (next * 7919 + i * 104_729) % 40_000).collect::<Vec<_>>()
    };
    let request = |prompt, drawn| Request { max_tokens: Some(drawn), ignore_end: true, ..Request::new(prompt) };
    let mut best = [[f64::INFINITY; 2]; 2];
    for _ in 0..rounds {
        for (best, n) in best.iter_mut().zip([1, requests]) {
            let all = (0..n).map(|_| request(tokens(prompt), drawn)).collect();
            let [first, last] = times(&handle, all)?;
            *best = [best[0].min(last), best[1].min(last - first)];
        }
    }
    let rate = |n: usize, tokens: usize, seconds: f64| (n * tokens) as f64 / seconds;
    let [one, all] = best;
    let (a, b) = (rate(1, prompt + drawn, one[0]), rate(requests, prompt + drawn, all[0]));
    println!("{prompt} + {drawn} tokens: {a:.1} tokens/s alone, {b:.1} of {requests} at once: {:.2} times", b / a);

    let mut best = [f64::INFINITY; 3];
    for _ in 0..rounds {
        let prefix = tokens(PREFIX);
        let end = |token: u32| [&prefix[..], &[token, token, token]].concat();
        for (best, prompt) in best.iter_mut().zip([end(5), end(6)]) {
            *best = best.min(times(&handle, vec![request(prompt, 1)])?[0]);
        }
        // Only decoding: all prompts are short.
        let all = (0..requests).map(|_| request(tokens(1), drawn)).collect();
        best[2] = best[2].min(times(&handle, all)?[1]);
    }
    println!("first token after {PREFIX}: {:.3} s, {:.3} s recalled: {:.3} of it", best[0], best[1], best[1] / best[0]);
    let mut alone = f64::INFINITY;
    for _ in 0..rounds {
        alone = alone.min(times(&handle, vec![request(tokens(1), drawn)])?[1]);
    }
    let (a, b) = (rate(1, drawn, alone), rate(requests, drawn, best[2]));
    println!("decode: {a:.1} tokens/s alone, {b:.1} of {requests} at once: {:.2} times", b / a);
    drop(handle);
    thread.join().expect("the scheduler ends");
    Ok(())
}

/// Seconds until the last of the first tokens has come, and until all are over.
fn times(handle: &Handle, requests: Vec<Request>) -> farpast::Result<[f64; 2]> {
    let (sender, events) = channel();
    let began = Instant::now();
    let n = requests.len();
    let tickets = requests.into_iter().enumerate().map(|(i, request)| {
        let sender = sender.clone();
        handle.submit(request, move |event| drop(sender.send((i, event))))
    });
    let _tickets = tickets.collect::<farpast::Result<Vec<_>>>()?;
    let (mut seen, mut over, mut first) = (vec![false; n], 0, 0.0);
    while over < n {
        match events.recv() {
            Ok((i, Event::Token { .. })) => {
                if !std::mem::replace(&mut seen[i], true) {
                    first = began.elapsed().as_secs_f64();
                }
            }
            Ok((_, Event::Finished { .. })) => over += 1,
            Ok((_, Event::Failed(e))) => return Err(e),
            Err(_) => break,
        }
    }
    Ok([first, began.elapsed().as_secs_f64()])
}
