//! Requests on a small model: whatever the company they are in, they get what they get alone.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use farpast::Error;
use farpast::attention::Attention;
use farpast::attention::aoc::AocOptions;
use farpast::chat::tokenizer;
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::memory::{Bytes, Element};
use farpast::sampler::{Dry, Logprobs, Penalties, Sampling};
use farpast::scheduler::{Event, Handle, Limits, Reason, Request, Scheduler, Ticket, Usage};
use farpast::speculation::Speculation;
use farpast::text::StopText;
use farpast::weights::Weights;

use crate::cases::Random;
use crate::toy_chat::{CONTEXT, toy};

fn weights() -> Weights {
    Weights::from_bytes("toy.gguf", Bytes::new(toy(None).write())).unwrap()
}

fn options() -> EngineOptions {
    crate::harness::gpu();
    let backend = Backend::Gpu(crate::harness::device());
    EngineOptions { backend, batch: 48, sequences: 6, kv: Element::F16, ..EngineOptions::default() }
}

fn scheduler_with(options: EngineOptions, limits: Limits) -> (Scheduler, Handle) {
    let weights = weights();
    let tokenizer = Arc::new(tokenizer(&weights).unwrap());
    let load = move || {
        let mut engine = Engine::load(&weights, &options, |_| ())?;
        engine.poison_free_pages()?;
        Ok(engine)
    };
    Scheduler::new(load, tokenizer, limits).unwrap()
}

fn scheduler(options: EngineOptions) -> (Scheduler, Handle) {
    scheduler_with(options, Limits::default())
}

/// What came of a request so far.
struct Asked {
    events: Receiver<Event>,
    ticket: Option<Ticket>,
}

#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    ids: Vec<u32>,
    text: String,
    logprobs: Vec<Logprobs>,
    reason: Reason,
    usage: Usage,
}

fn ask(handle: &Handle, request: Request) -> Asked {
    let (sender, events) = channel();
    let ticket = handle.submit(request, move |event| drop(sender.send(event))).unwrap();
    Asked { events, ticket: Some(ticket) }
}

impl Asked {
    /// What has come.
    fn outcome(&self) -> Result<Outcome, Error> {
        let (mut ids, mut all, mut scored) = (vec![], String::new(), vec![]);
        for event in self.events.try_iter() {
            match event {
                Event::Token { id, text, logprobs } => {
                    ids.push(id);
                    scored.extend(logprobs);
                    all += &text;
                }
                Event::Finished { text, reason, usage } => {
                    assert!(self.events.try_recv().is_err(), "nothing comes after the end");
                    return Ok(Outcome { ids, text: all + &text, logprobs: scored, reason, usage });
                }
                Event::Failed(e) => return Err(e),
            }
        }
        panic!("not over after {} tokens", ids.len());
    }
}

fn run(scheduler: &mut Scheduler) -> usize {
    let mut steps = 1;
    while scheduler.step() {
        steps += 1;
        assert!(steps < 10_000, "it comes to an end");
    }
    steps
}

fn prompt(random: &mut Random, n: usize) -> Vec<u32> {
    (0..n).map(|_| random.below(256) as u32).collect()
}

/// Different in every respect; a third begin alike.
fn requests() -> Vec<Request> {
    let mut random = Random(3);
    let common = prompt(&mut random, 50);
    let request = |i: usize| {
        let n = 1 + random.below(90);
        let own = prompt(&mut random, n);
        Request {
            client: format!("client {}", i % 4),
            max_tokens: (!i.is_multiple_of(5)).then_some(1 + 7 * (i % 7)),
            sampling: Sampling {
                temperature: [0.0, 1.0, 1.3][i % 3],
                top_k: [0, 30][i % 2],
                top_p: [1.0, 0.9][i / 2 % 2],
                min_p: [0.0, 0.0, 0.05][i % 3],
                penalties: Penalties {
                    frequency: [0.0, 0.4][i / 3 % 2],
                    repeat: [1.0, 1.2][i / 4 % 2],
                    ..Penalties::default()
                },
                dry: Dry { multiplier: [0.0, 0.0, 0.8, 0.0][i % 4], ..Dry::default() },
                seed: i as u64,
                ..Sampling::default()
            },
            logprobs: [None, Some(2), None][i % 3],
            ignore_end: i.is_multiple_of(2),
            ..Request::new(if i.is_multiple_of(3) { [&common[..], &own].concat() } else { own })
        }
    };
    (0..16).map(request).collect()
}

/// Each with an engine to itself, one after the other, and nothing kept.
fn alone(requests: &[Request]) -> Vec<Outcome> {
    let each = |request: &Request| {
        let (mut scheduler, handle) = scheduler(EngineOptions { sequences: 1, batch: 256, ..options() });
        let asked = ask(&handle, request.clone());
        run(&mut scheduler);
        asked.outcome().unwrap()
    };
    requests.iter().map(each).collect()
}

#[test]
fn requests_get_in_any_company_what_they_get_alone() {
    let requests = requests();
    let expected = alone(&requests);
    assert!(expected.iter().any(|o| o.reason == Reason::Length) && expected.iter().any(|o| o.ids.len() > 100));
    for (pages, sequences) in [(0, 6), (26, 6), (16, 16)] {
        let (mut scheduler, handle) = scheduler(EngineOptions { pages, sequences, ..options() });
        let total = scheduler.engine().unwrap().capacity().pages;
        // In the last round half of them are guessed.
        for round in 0..3 {
            let mut asked = vec![];
            for (i, request) in requests.iter().enumerate() {
                let speculation = (round == 2 && i.is_multiple_of(2)).then_some(EAGER);
                asked.push(ask(&handle, Request { speculation, ..request.clone() }));
                // Some come while others are under way.
                (0..i % 3).for_each(|_| _ = scheduler.step());
            }
            run(&mut scheduler);
            for (i, (asked, expected)) in asked.iter().zip(&expected).enumerate() {
                let found = asked.outcome().unwrap();
                let usage = Usage { cached: found.usage.cached, ..expected.usage };
                assert_eq!(found, Outcome { usage, ..expected.clone() }, "{i}, round {round}, {total} pages");
            }
        }
        let stats = handle.stats();
        println!("{total} pages: {stats:?}");
        assert_eq!((stats.running, stats.waiting, stats.free_pages), (0, 0, total));
        assert!(stats.prefixes.found > 0 && (pages == 0 || stats.preemptions > 0), "{stats:?}");
        // Where all rows of a step are taken nothing is guessed.
        assert!(stats.drafts.drafted > 0 && stats.drafts.accepted < stats.drafts.drafted, "{stats:?}");
    }
}

/// Takes every chance.
const EAGER: Speculation = Speculation { draft_max: 15, draft_min: 1, lookup_max: 4, lookup_min: 1 };

/// An engine whose draft model is the same model.
fn drafting(options: &EngineOptions) -> Engine {
    let (weights, tokenizer) = (weights(), tokenizer(&weights()).unwrap());
    let [mut engine, draft] = [(); 2].map(|()| Engine::load(&weights, options, |_| ()).unwrap());
    engine.poison_free_pages().unwrap();
    engine.draft_by(draft, &tokenizer, &tokenizer).unwrap();
    engine
}

#[test]
fn requests_that_a_model_guesses_for_get_what_they_get_alone() {
    let requests = &requests()[..9];
    let expected = alone(requests);
    for pages in [0, 26] {
        let tokenizer = Arc::new(tokenizer(&weights()).unwrap());
        let load = move || Ok(drafting(&EngineOptions { pages, ..options() }));
        let (mut scheduler, handle) = Scheduler::new(load, tokenizer, Limits::default()).unwrap();
        let speculation = Some(Speculation { lookup_max: 0, ..EAGER });
        let ask = |request: &Request| ask(&handle, Request { speculation, ..request.clone() });
        let asked: Vec<_> = requests.iter().map(ask).collect();
        let steps = run(&mut scheduler);
        for (i, (asked, expected)) in asked.iter().zip(&expected).enumerate() {
            let found = asked.outcome().unwrap();
            let usage = Usage { cached: found.usage.cached, ..expected.usage };
            assert_eq!(found, Outcome { usage, ..expected.clone() }, "{i}, {pages} pages");
        }
        let (stats, drawn) = (handle.stats(), expected.iter().map(|o| o.ids.len()).sum::<usize>());
        println!("{drawn} tokens in {steps} steps: {stats:?}");
        assert!(stats.drafts.accepted == stats.drafts.drafted && 4 * stats.drafts.accepted > drawn as u64, "{stats:?}");
        assert_eq!((stats.running, stats.free_pages), (0, stats.pages));
        assert_eq!(stats.preemptions > 0, pages > 0, "{stats:?}");
    }
}

#[test]
fn a_request_that_is_cancelled_while_its_draft_is_computed_frees_its_pages() {
    let tokenizer = Arc::new(tokenizer(&weights()).unwrap());
    let (mut scheduler, handle) = Scheduler::new(|| Ok(drafting(&options())), tokenizer, Limits::default()).unwrap();
    let mut random = Random(15);
    for steps in 3..12 {
        let request = |random: &mut Random| Request {
            speculation: Some(Speculation { lookup_max: 0, ..EAGER }),
            ignore_end: true,
            ..Request::new(prompt(random, 30))
        };
        let mut asked: Vec<_> = (0..3).map(|_| ask(&handle, request(&mut random))).collect();
        (0..steps).for_each(|_| _ = scheduler.step());
        asked[1].ticket = None;
        scheduler.step();
        scheduler.step();
        assert_eq!(asked[1].outcome().unwrap().reason, Reason::Cancelled);
        drop(asked);
        run(&mut scheduler);
        let stats = handle.stats();
        assert_eq!((stats.running, stats.free_pages), (0, stats.pages), "after {steps} steps");
    }
    assert!(handle.stats().drafts.drafted > 0);
}

#[test]
fn requests_of_all_kinds_of_attention_run_together_and_every_page_comes_back() {
    let (mut scheduler, handle) =
        scheduler(EngineOptions { aoc: true, context: 2048, batch: 128, sequences: 4, kv: Element::F32, ..options() });
    let (mut random, total) = (Random(12), handle.stats().pages);
    let prompts: Vec<_> = (0..3).map(|_| prompt(&mut random, 1300)).collect();
    let aoc = |budget| Attention::Aoc(AocOptions { local: 64, budget, ..AocOptions::default() });
    let request = |prompt: &Vec<u32>, attention| Request {
        attention,
        ignore_end: true,
        max_tokens: Some(30),
        ..Request::new(prompt.clone())
    };
    let alone: Vec<_> = prompts
        .iter()
        .map(|prompt| {
            let asked = ask(&handle, request(prompt, Attention::Dense));
            run(&mut scheduler);
            asked.outcome().unwrap().ids
        })
        .collect();
    // All rows read is as good as dense; what was computed so serves others as far as no tree had a part in it.
    let kinds = [Attention::Dense, aoc(1 << 20), Attention::Window(64), aoc(150)];
    let asked: Vec<_> = (0..4).map(|i| ask(&handle, request(&prompts[i % 3], kinds[i]))).collect();
    run(&mut scheduler);
    let found: Vec<_> = asked.iter().map(|asked| asked.outcome().unwrap()).collect();
    assert_eq!([&found[0].ids, &found[1].ids], [&alone[0], &alone[1]]);
    assert!(found.iter().all(|found| found.ids.len() == 30 && found.usage.cached >= 1280), "{found:?}");
    let asked = ask(&handle, request(&prompt(&mut random, 1400), aoc(150)));
    run(&mut scheduler);
    assert_eq!(asked.outcome().unwrap().usage.drawn, 30);
    assert_eq!(handle.stats().free_pages, total);
}

#[test]
fn a_cancelled_request_is_gone_in_two_steps_and_its_pages_are_free() {
    let (mut scheduler, handle) = scheduler(options());
    let mut random = Random(5);
    for steps in 0..6 {
        let mut asked: Vec<_> = (0..3).map(|_| ask(&handle, Request::new(prompt(&mut random, 120)))).collect();
        (0..steps).for_each(|_| _ = scheduler.step());
        let before = handle.stats();
        asked[1].ticket = None;
        scheduler.step();
        scheduler.step();
        let outcome = asked[1].outcome().unwrap();
        assert_eq!(outcome.reason, Reason::Cancelled);
        assert!(handle.stats().running <= 2 && before.running <= 3);
        drop(asked);
        run(&mut scheduler);
        let stats = handle.stats();
        assert_eq!((stats.running, stats.free_pages), (0, stats.pages), "after {steps} steps");
    }
}

#[test]
fn a_request_joins_within_two_steps() {
    let (mut scheduler, handle) = scheduler(options());
    let _long = ask(&handle, Request { ignore_end: true, ..Request::new(vec![1, 2, 3]) });
    (0..9).for_each(|_| _ = scheduler.step());
    let joined = ask(&handle, Request { max_tokens: Some(1), ..Request::new(vec![4, 5, 6]) });
    let before = handle.stats().steps;
    while joined.events.try_recv().is_err() {
        scheduler.step();
    }
    assert!(handle.stats().steps <= before + 2, "{} steps", handle.stats().steps - before);
}

#[test]
fn clients_take_turns_and_each_is_served_in_order() {
    let (mut scheduler, handle) = scheduler(EngineOptions { sequences: 1, ..options() });
    let order = Arc::new(Mutex::new(vec![]));
    let mut tickets = vec![];
    for name in ["a1", "a2", "a3", "b1", "c1", "b2"] {
        let order = order.clone();
        let request = Request { client: name[..1].into(), max_tokens: Some(1), ..Request::new(vec![9]) };
        let finished = move |event| {
            if let Event::Finished { .. } = event {
                order.lock().unwrap().push(name);
            }
        };
        tickets.push(handle.submit(request, finished).unwrap());
    }
    run(&mut scheduler);
    assert_eq!(*order.lock().unwrap(), ["a1", "b1", "c1", "a2", "b2", "a3"]);
}

#[test]
fn equal_prompts_are_computed_once() {
    let (mut scheduler, handle) = scheduler(options());
    let prompt = prompt(&mut Random(8), 100);
    let sampling = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
    let request = |seed| Request { max_tokens: Some(4), sampling: sampling(seed), ..Request::new(prompt.clone()) };
    let asked: Vec<_> = (0..4).map(|seed| ask(&handle, request(seed))).collect();
    run(&mut scheduler);
    let cached: Vec<_> = asked.iter().map(|asked| asked.outcome().unwrap().usage.cached).collect();
    assert_eq!(cached, [0, 96, 96, 96]);
}

#[test]
fn text_ends_before_a_stop_string() {
    let (mut scheduler, handle) = scheduler(options());
    let request = Request { max_tokens: Some(60), ignore_end: true, ..Request::new(prompt(&mut Random(9), 20)) };
    let whole = ask(&handle, request.clone());
    run(&mut scheduler);
    let whole = whole.outcome().unwrap();
    let letters: Vec<(usize, char)> = whole.text.char_indices().collect();
    for (from, n) in [(0, 1), (5, 2), (9, 3), (letters.len() - 2, 2)] {
        let stop: String = letters[from..from + n].iter().map(|(_, c)| c).collect();
        let at = whole.text.find(&stop).unwrap();
        let stop = vec!["not there".into(), stop];
        let asked = ask(&handle, Request { stop: stop.clone(), ..request.clone() });
        run(&mut scheduler);
        let found = asked.outcome().unwrap();
        assert_eq!((found.text.as_str(), found.reason), (&whole.text[..at], Reason::Stop), "{stop:?}");
        assert!(found.ids.len() <= whole.ids.len() && whole.ids.starts_with(&found.ids));
    }
}

#[test]
fn stop_strings_are_found_however_text_is_cut() {
    let text = "one two, and three — ENDED, said he. END";
    for cut in 1..9 {
        let mut stop = StopText::new(vec!["END.".into(), "— END!".into(), "said he. E".into()]);
        let (mut all, mut over) = (String::new(), false);
        let letters: Vec<char> = text.chars().collect();
        for piece in letters.chunks(cut) {
            let (certain, ended) = stop.push(&piece.iter().collect::<String>());
            all += &certain;
            over = ended;
            if over {
                break;
            }
        }
        assert!(over, "in pieces of {cut}");
        assert_eq!(all, "one two, and three — ENDED, ");
        let mut stop = StopText::new(vec!["END!".into()]);
        let mut all: String = letters.chunks(cut).map(|piece| stop.push(&piece.iter().collect::<String>()).0).collect();
        all += &stop.finish();
        assert_eq!(all, text);
    }
}

#[test]
fn what_cannot_be_computed_is_refused_at_once() {
    let limits = Limits { waiting: 3, ..Limits::default() };
    let (mut scheduler, handle) = scheduler_with(options(), limits);
    let submit = |request: Request| handle.submit(request, |_| ()).map(drop);
    let sampling = |temperature, top_p| Sampling { temperature, top_p, ..Sampling::default() };
    for (request, expected) in [
        (Request::new(vec![]), "prompt"),
        (Request::new(vec![1, 258]), "below 258"),
        (Request { max_tokens: Some(0), ..Request::new(vec![1]) }, "tokens to draw"),
        (Request { stop: vec![String::new()], ..Request::new(vec![1]) }, "stop string"),
        (Request { stop: vec!["a".into(); 17], ..Request::new(vec![1]) }, "at most 16"),
        (Request { sampling: sampling(f32::NAN, 1.0), ..Request::new(vec![1]) }, "temperature"),
        (Request { sampling: sampling(1.0, 1.5), ..Request::new(vec![1]) }, "top-p"),
        (Request { attention: Attention::Aoc(AocOptions::default()), ..Request::new(vec![1]) }, "without aoc"),
    ] {
        let error = submit(request).unwrap_err();
        assert!(matches!(error, Error::Request { .. }) && error.to_string().contains(expected), "{error}");
    }
    assert!(matches!(submit(Request::new(vec![1; CONTEXT + 1])), Err(Error::ContextFull { .. })));
    let asked: Vec<_> =
        (0..3).map(|_| ask(&handle, Request { max_tokens: Some(2), ..Request::new(vec![1; 9]) })).collect();
    assert!(matches!(submit(Request::new(vec![1])), Err(Error::Busy { limit: 3 })));
    scheduler.step();
    // They have begun: others may wait.
    let last = ask(&handle, Request { max_tokens: Some(2), ..Request::new(vec![2; CONTEXT]) });
    run(&mut scheduler);
    assert!(asked.iter().all(|asked| asked.outcome().unwrap().ids.len() == 2));
    // A prompt that fills the context has room for the token after it.
    let outcome = last.outcome().unwrap();
    assert_eq!((outcome.ids.len(), outcome.reason), (1, Reason::Length));
}

#[test]
fn after_a_device_was_lost_requests_fail_typed_and_later_ones_are_served() {
    let (mut scheduler, handle) = scheduler(EngineOptions { sequences: 2, ..options() });
    let request = Request { max_tokens: Some(20), ..Request::new(vec![7; 30]) };
    let expected = ask(&handle, request.clone());
    run(&mut scheduler);
    let expected = expected.outcome().unwrap();
    let asked: Vec<_> = (0..3).map(|_| ask(&handle, request.clone())).collect();
    (0..5).for_each(|_| _ = scheduler.step());
    scheduler.engine().unwrap().lose_device();
    run(&mut scheduler);
    for asked in &asked[..2] {
        let error = asked.outcome().unwrap_err();
        assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    }
    // One had to wait, and is computed on the new device.
    assert_eq!(asked[2].outcome().unwrap().ids, expected.ids);
    let stats = handle.stats();
    assert_eq!((stats.failed, stats.running, stats.free_pages), (2, 0, stats.pages));
}

#[test]
fn without_an_engine_requests_fail_and_are_not_left_waiting() {
    let weights = weights();
    let tokenizer = Arc::new(tokenizer(&weights).unwrap());
    let mut loads = 0;
    let load = move || {
        loads += 1;
        match loads {
            1 | 3 => Engine::load(&weights, &options(), |_| ()),
            _ => Err(Error::NoDevice { wanted: "any".into(), found: "none".into() }),
        }
    };
    let (mut scheduler, handle) = Scheduler::new(load, tokenizer, Limits::default()).unwrap();
    scheduler.engine().unwrap().lose_device();
    let request = Request { max_tokens: Some(3), ..Request::new(vec![7; 30]) };
    for fails in [true, true, false] {
        let asked = ask(&handle, request.clone());
        run(&mut scheduler);
        assert_eq!(asked.outcome().is_err(), fails);
    }
    drop(scheduler);
    let asked = ask(&handle, request);
    assert!(asked.outcome().is_err(), "nobody is there to compute it");
}

#[test]
fn a_thread_runs_requests_until_nobody_is_left_to_ask() {
    let (scheduler, handle) = scheduler(EngineOptions { backend: Backend::Cpu, ..options() });
    let thread = std::thread::spawn(move || scheduler.run());
    let asked: Vec<_> =
        (0..3).map(|i| ask(&handle, Request { max_tokens: Some(5), ..Request::new(vec![i; 9]) })).collect();
    drop(handle);
    thread.join().unwrap();
    assert!(asked.iter().all(|asked| asked.outcome().is_ok()));
}
