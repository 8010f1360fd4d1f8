//! Whole models, small enough that every property of the engine is checked on every driver.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use farpast::Error;
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::memory::{Element, Maths};
use farpast::sampler::Sampling;
use farpast::session::Session;

use crate::cases::Random;
use crate::toy::{self, CONTEXT, Toy};

/// The bound on the largest difference of a logit.
const BOUND: f32 = 1e-4;

/// Lengths around the boundaries of pages.
const LENGTHS: [usize; 9] = [1, 2, 15, 16, 17, 31, 32, 33, 47];

fn options() -> EngineOptions {
    let backend = Backend::Gpu(crate::harness::device());
    EngineOptions { backend, batch: 32, sequences: 5, kv: Element::F32, ..EngineOptions::default() }
}

fn load(toy: &Toy, options: &EngineOptions) -> Engine {
    crate::harness::gpu();
    let engine = Engine::load(&toy.weights(), options, |_| ()).unwrap();
    match options.backend {
        // What is not computed is NaN, wherever it is.
        Backend::Gpu(_) => poisoned(engine),
        Backend::Cpu => engine,
    }
}

fn poisoned(mut engine: Engine) -> Engine {
    engine.poison_free_pages().unwrap();
    engine
}

fn cpu(toy: &Toy, kv: Element) -> Engine {
    load(toy, &EngineOptions { backend: Backend::Cpu, kv, ..options() })
}

fn tokens(seed: u64, n: usize, toy: &Toy) -> Vec<u32> {
    let mut random = Random(seed);
    (0..n).map(|_| random.below(toy.vocab) as u32).collect()
}

/// Logits after each of `tokens`, computed by a session of its own.
fn logits(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut session = engine.session();
    session.push(tokens);
    engine.logits(&mut session).unwrap()
}

/// As [`logits`], one token at a time.
fn decoded(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut session = engine.session();
    let each = tokens.iter().map(|t| {
        session.push(&[*t]);
        engine.logits(&mut session).unwrap().remove(0)
    });
    each.collect()
}

fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.len(), b.len(), "rows of logits");
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(a, b)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() }).fold(0.0, f32::max)
}

#[track_caller]
fn expect_close(a: &[Vec<f32>], b: &[Vec<f32>], what: impl std::fmt::Display) {
    let most = difference(a, b);
    assert!(most <= BOUND, "{what}: logits differ by {most:e}");
}

#[test]
fn decode_equals_prefill_and_both_the_references() {
    for toy in toy::ALL {
        let (name, tokens) = (toy.name, tokens(1, 50, toy));
        // A key or value near the middle of two f16 may be rounded to either: 2^-11 of it.
        let kvs: &[_] = if name.contains('_') {
            &[(Element::F32, BOUND)]
        } else {
            &[(Element::F32, BOUND), (Element::F16, 3e-3), (Element::Q8_0, 3e-2), (Element::Q4_0, 0.3)]
        };
        for &(kv, bound) in kvs {
            let expected = logits(&mut cpu(toy, kv), &tokens);
            let spread = expected.iter().flatten().fold(0f32, |most, x| most.max(x.abs()));
            assert!(spread > 0.5, "logits of {name} say something: {spread}");
            let mut gpu = load(toy, &EngineOptions { kv, ..options() });
            let (prefill, decode) = (logits(&mut gpu, &tokens), decoded(&mut gpu, &tokens));
            let most = difference(&prefill, &expected).max(difference(&decode, &expected));
            let same = prefill == decode;
            assert!(same || !kv.is_blocks(), "{name}, KV {kv:?}");
            println!("{name}, KV {kv:?}: {most:e} from the references; decode has the bits of prefill: {same}");
            assert!(most <= bound, "{name}, KV {kv:?}: {most:e}");
            expect_close(&prefill, &decode, format!("{name}, KV {kv:?}"));
        }
    }
}

/// Prefill rounds weights and activations to f16; the steps of decode that follow do not.
#[test]
fn prefill_by_coopmat_is_close_to_the_references() {
    if crate::harness::gpu().caps().matrices.is_none() {
        println!("not run, as the device has no cooperative matrices");
        return;
    }
    for toy in toy::ALL.iter().filter(|toy| ["gemma3", "llama_q4_1"].contains(&toy.name)) {
        let tokens = tokens(1, 50, toy);
        let expected = logits(&mut cpu(toy, Element::F32), &tokens);
        let mut gpu = load(toy, &EngineOptions { maths: Maths::Coopmat, ..options() });
        let mut session = gpu.session();
        session.push(&tokens[..45]);
        let mut found = gpu.logits(&mut session).unwrap();
        for token in &tokens[45..] {
            session.push(&[*token]);
            found.append(&mut gpu.logits(&mut session).unwrap());
        }
        let most = difference(&found, &expected);
        println!("{}: {most:e} from the references", toy.name);
        assert!(most <= 2e-2 && most > BOUND, "{}: {most:e}", toy.name);
    }
}

#[test]
fn chunks_of_any_size_give_the_same_logits() {
    let toy = &toy::ALL[1];
    let tokens = tokens(3, 65, toy);
    let mut engine = load(toy, &EngineOptions { batch: 64, sequences: 1, ..options() });
    let expected = logits(&mut engine, &tokens).pop().unwrap();
    for chunk in [1, 2, 3, 7, 15, 16, 17, 64] {
        let mut session = engine.session();
        for chunk in tokens.chunks(chunk) {
            session.push(chunk);
            engine.step(&mut [&mut session]).unwrap();
            // The sampled token is not one of the prompt's.
            session.rewind(session.tokens().len() - 1);
        }
        let found = engine.last_logits(1).unwrap();
        expect_close(&found, std::slice::from_ref(&expected), format!("chunks of {chunk}"));
    }
}

#[test]
fn logits_from_a_position_on_are_those_of_all_positions() {
    for toy in [&toy::ALL[0], &toy::ALL[3]] {
        let mut engine = load(toy, &options());
        let tokens = tokens(23, 70, toy);
        let all = logits(&mut engine, &tokens);
        for from in [0, 1, 31, 32, 45, 69, 70, 99] {
            let mut session = engine.session();
            session.push(&tokens);
            let mut rows = Vec::new();
            engine.each_logits(&mut session, from, |position, row| rows.push((position, row.to_vec()))).unwrap();
            assert!(rows.iter().map(|(position, _)| *position).eq(from..70), "from {from}");
            assert!(rows.iter().all(|(position, row)| *row == all[*position]), "from {from}");
            assert_eq!(session.pending().len(), 0);
        }
    }
}

#[test]
fn batches_of_any_size_give_the_same_logits() {
    let toy = &toy::ALL[2];
    let tokens = tokens(4, 40, toy);
    let expected = logits(&mut load(toy, &options()), &tokens);
    for batch in [1, 3, 17] {
        let mut engine = load(toy, &EngineOptions { batch, sequences: 1, ..options() });
        expect_close(&logits(&mut engine, &tokens), &expected, format!("a batch of {batch}"));
        let mut session = engine.session();
        session.push(&tokens);
        let mut steps = 1;
        while engine.step(&mut [&mut session]).unwrap() == [None] {
            steps += 1;
        }
        assert_eq!(steps, tokens.len().div_ceil(batch), "a batch of {batch}");
        expect_close(&engine.last_logits(1).unwrap(), &expected[39..], format!("steps of {batch}"));
    }
}

#[test]
fn sequences_of_a_mixed_batch_are_as_if_alone() {
    for (toy, kv) in [(&toy::ALL[0], Element::F32), (&toy::ALL[3], Element::F16)] {
        let mut engine = load(toy, &EngineOptions { kv, ..options() });
        let prompts = [33, 1, 16, 7, 45].map(|n| tokens(n as u64, n, toy));
        let mut sessions: Vec<Session> = prompts.iter().map(|_| engine.session()).collect();
        let mut seen: Vec<(usize, usize, Vec<f32>)> = vec![];
        for step in 0..14 {
            // Each joins in another step, while those before it decode.
            for i in (0..5).filter(|i| 2 * i == step) {
                sessions[i].push(&prompts[i]);
            }
            let mut joined: Vec<_> = sessions.iter_mut().filter(|s| !s.tokens().is_empty()).collect();
            let ids = engine.step(&mut joined).unwrap();
            let done: Vec<_> = (0..ids.len()).filter(|i| ids[*i].is_some()).collect();
            let rows = engine.last_logits(done.len()).unwrap();
            // The sampled token stands behind those that the logits are of.
            seen.extend(done.iter().zip(rows).map(|(i, row)| (*i, joined[*i].tokens().len() - 1, row)));
        }
        assert!(seen.len() > 40, "{} rows", seen.len());
        for (i, session) in sessions.iter().enumerate() {
            let alone = logits(&mut engine, session.tokens());
            for (_, n, row) in seen.iter().filter(|(of, ..)| *of == i) {
                expect_close(std::slice::from_ref(row), &alone[n - 1..*n], format!("sequence {i} of {n} tokens"));
            }
        }
    }
}

#[test]
fn a_sequence_has_the_same_bits_alone_and_in_any_batch() {
    let cases = [(0, Element::F16), (2, Element::F32), (1, Element::Q8_0), (3, Element::Q4_0)];
    for (toy, kv) in cases.map(|(i, kv)| (&toy::ALL[i], kv)) {
        let mut engine = load(toy, &EngineOptions { kv, sequences: 9, ..options() });
        let all: Vec<_> = (0..9).map(|i| tokens(60 + i, 40 + i as usize, toy)).collect();
        let alone: Vec<_> = all.iter().map(|tokens| decoded(&mut engine, tokens)).collect();
        for n in [1, 2, 4, 5, 9] {
            let mut sessions: Vec<_> = all[..n].iter().map(|_| engine.session()).collect();
            // The last one is prefilled in chunks while the others decode.
            for step in 0..30 {
                for (i, s) in sessions.iter_mut().enumerate() {
                    let from = s.tokens().len();
                    s.push(&all[i][from..from + if i + 1 == n && step % 10 == 9 { 2 } else { 1 }]);
                }
                engine.step(&mut sessions.iter_mut().collect::<Vec<_>>()).unwrap();
                let rows = engine.last_logits(n).unwrap();
                for (i, (s, row)) in sessions.iter_mut().zip(rows).enumerate() {
                    s.rewind(s.tokens().len() - 1);
                    assert!(row == alone[i][s.tokens().len() - 1], "sequence {i} of {n} in step {step}");
                }
            }
        }
    }
}

#[test]
fn runs_are_equal_bit_for_bit() {
    let toy = &toy::ALL[2];
    let mut engine = load(toy, &EngineOptions { kv: Element::F16, ..options() });
    let tokens = tokens(6, 35, toy);
    let first = (logits(&mut engine, &tokens), decoded(&mut engine, &tokens[..9]));
    for run in 1..20 {
        assert!(first == (logits(&mut engine, &tokens), decoded(&mut engine, &tokens[..9])), "run {run}");
    }
}

#[test]
fn the_order_of_pages_changes_no_bit() {
    let toy = &toy::ALL[0];
    let mut engine = load(toy, &options());
    let tokens = tokens(7, 90, toy);
    let expected = (logits(&mut engine, &tokens), decoded(&mut engine, &tokens[..40]));
    let mut order: Vec<u32> = (0..engine.capacity().pages as u32).collect();
    for seed in 0..3 {
        Random(seed).shuffle(&mut order);
        engine.order_pages(order.clone());
        assert!(expected == (logits(&mut engine, &tokens), decoded(&mut engine, &tokens[..40])), "order {seed}");
    }
}

#[test]
fn freed_pages_never_show() {
    let toy = &toy::ALL[1];
    for kv in Element::KV.map(|(_, kv)| kv) {
        let options = EngineOptions { kv, ..options() };
        let mut engine = load(toy, &options);
        let [a, b] = [81, 50].map(|n| tokens(n as u64, n, toy));
        let expected = logits(&mut engine, &b);
        drop(logits(&mut engine, &a));
        assert!(expected == logits(&mut engine, &b), "stale pages");
        engine.poison_free_pages().unwrap();
        assert!(expected == logits(&mut engine, &b), "poisoned pages");
        assert!(expected.iter().flatten().all(|x| x.is_finite()));
    }
}

#[test]
fn poison_shows_where_it_is_read() {
    // Otherwise the tests with poisoned pages prove nothing: here the pages of a session are freed under its fork's feet.
    let toy = &toy::ALL[0];
    let mut engine = load(toy, &options());
    let mut session = engine.session();
    session.push(&tokens(8, 20, toy));
    engine.logits(&mut session).unwrap();
    engine.order_pages((0..engine.capacity().pages as u32).collect());
    engine.poison_free_pages().unwrap();
    session.push(&[1]);
    let rows = engine.logits(&mut session).unwrap();
    assert!(rows[0].iter().all(|x| x.is_nan()));
    let error = engine.step(&mut [&mut session]).unwrap_err();
    assert!(matches!(error, Error::Request { .. }), "{error}");
}

#[test]
fn a_rewound_session_is_as_if_new() {
    let toy = &toy::ALL[3];
    let mut engine = load(toy, &options());
    let (prompt, other) = (tokens(9, 48, toy), tokens(10, 19, toy));
    for len in LENGTHS {
        for shared in [false, true] {
            let mut session = engine.session();
            session.push(&prompt);
            engine.logits(&mut session).unwrap();
            let fork = shared.then(|| session.fork());
            session.rewind(len);
            engine.poison_free_pages().unwrap();
            session.push(&other);
            let all = [&prompt[..len], &other].concat();
            assert_eq!(session.tokens(), all);
            let found = engine.logits(&mut session).unwrap();
            let expected = logits(&mut engine, &all);
            expect_close(&found[found.len() - 19..], &expected[len..], format!("rewound to {len}"));
            if let Some(mut fork) = fork {
                fork.push(&other);
                let found = engine.logits(&mut fork).unwrap();
                let expected = logits(&mut engine, &[&prompt[..], &other].concat());
                expect_close(&found[found.len() - 19..], &expected[48..], format!("fork of one rewound to {len}"));
            }
        }
    }
    assert_eq!(engine.free_pages(), engine.capacity().pages);
}

#[test]
fn a_fork_and_its_origin_go_their_own_ways() {
    let toy = &toy::ALL[2];
    let mut engine = load(toy, &options());
    for len in LENGTHS {
        let prompt = tokens(11, len, toy);
        let mut a = engine.session();
        a.push(&prompt);
        engine.logits(&mut a).unwrap();
        let mut b = a.fork();
        assert_eq!(b.tokens(), a.tokens());
        for round in 0..2 {
            let ends = [tokens(12 + round, 17, toy), tokens(14 + round, 9, toy)];
            for (session, end) in [&mut a, &mut b].into_iter().zip(&ends) {
                session.push(end);
                let found = engine.logits(session).unwrap();
                let expected = logits(&mut engine, session.tokens());
                let n = end.len();
                expect_close(&found[found.len() - n..], &expected[expected.len() - n..], format!("fork at {len}"));
            }
        }
        // The logits after the last token once more, when nothing is pending.
        let again = engine.logits(&mut b).unwrap().pop().unwrap();
        let expected = logits(&mut engine, b.tokens()).pop().unwrap();
        expect_close(&[again], &[expected], format!("fork at {len}, again"));
    }
    assert_eq!(engine.free_pages(), engine.capacity().pages);
}

#[test]
fn sampled_tokens_are_those_of_the_references() {
    let toy = &toy::ALL[1];
    let generate = |engine: &mut Engine, sampling: &Sampling| {
        let mut session = engine.session();
        session.sampling = sampling.clone();
        session.push(&tokens(16, 5, toy));
        (0..40).map(|_| engine.step(&mut [&mut session]).unwrap()[0].unwrap()).collect::<Vec<_>>()
    };
    let (mut gpu, mut cpu) = (load(toy, &options()), cpu(toy, Element::F32));
    let mut all = vec![];
    for (temperature, top_k, top_p, seed) in [(0.0, 0, 1.0, 0), (0.8, 40, 0.9, 1), (1.0, 0, 1.0, 2), (1.5, 9, 1.0, 3)] {
        let sampling = Sampling { temperature, top_k, top_p, seed, ..Sampling::default() };
        let found = generate(&mut gpu, &sampling);
        assert_eq!(found, generate(&mut cpu, &sampling), "{sampling:?}");
        assert_eq!(found, generate(&mut gpu, &sampling), "{sampling:?} once more");
        all.push(found);
    }
    assert!(all[1] != all[2], "seeds count");
}

#[test]
fn weights_split_by_a_small_binding_are_the_same_weights() {
    for toy in [&toy::ALL[0], &toy::ALL[2]] {
        let tokens = tokens(17, 30, toy);
        let whole = logits(&mut load(toy, &options()), &tokens);
        let rows = |limit: usize| toy.format.gpu_bytes(limit, toy.hidden);
        // The head and the embedding in two parts, or three.
        let mut split = load(toy, &EngineOptions { binding: rows(toy.vocab / 2), ..options() });
        assert!(whole == logits(&mut split, &tokens), "{}", toy.format.name);
        expect_close(&decoded(&mut split, &tokens), &whole, toy.format.name);
    }
}

/// What a failed step must leave as it was.
fn state(engine: &Engine, session: &Session) -> (Vec<u32>, usize, usize) {
    (session.tokens().to_vec(), session.pending().len(), engine.free_pages())
}

#[test]
fn without_pages_a_step_is_refused_and_nothing_changes() {
    let toy = &toy::ALL[0];
    let pages = CONTEXT / 16;
    let mut engine = load(toy, &EngineOptions { pages, sequences: 2, batch: 64, ..options() });
    let (mut a, mut b) = (engine.session(), engine.session());
    a.push(&tokens(18, 64, toy));
    engine.step(&mut [&mut a]).unwrap();
    b.push(&tokens(19, 33, toy));
    let before = [state(&engine, &a), state(&engine, &b)];
    match engine.step(&mut [&mut b]).unwrap_err() {
        Error::OutOfPages { needed, free } => assert_eq!((needed, free), (3, 2)),
        other => panic!("{other}"),
    }
    // Also when another session of the step has what it needs.
    assert!(matches!(engine.step(&mut [&mut a, &mut b]).unwrap_err(), Error::OutOfPages { .. }));
    assert_eq!(before, [state(&engine, &a), state(&engine, &b)]);
    drop(a);
    engine.step(&mut [&mut b]).unwrap();
    let found = engine.last_logits(1).unwrap();
    drop(b);
    expect_close(&found, &logits(&mut engine, &tokens(19, 33, toy))[32..], "after pages were freed");
}

#[test]
fn beyond_the_context_a_step_is_refused_and_nothing_changes() {
    let toy = &toy::ALL[1];
    let mut engine = load(toy, &EngineOptions { batch: 128, ..options() });
    let mut session = engine.session();
    session.push(&tokens(20, CONTEXT + 1, toy));
    let before = state(&engine, &session);
    match engine.step(&mut [&mut session]).unwrap_err() {
        Error::ContextFull { tokens, context } => assert_eq!((tokens, context), (CONTEXT + 1, CONTEXT)),
        other => panic!("{other}"),
    }
    assert_eq!(before, state(&engine, &session));
    session.rewind(CONTEXT);
    assert!(engine.step(&mut [&mut session]).unwrap()[0].is_some());
    // The sampled token has no position left.
    assert!(matches!(engine.step(&mut [&mut session]).unwrap_err(), Error::ContextFull { .. }));
    assert_eq!(session.pending().len(), 1);
}

#[test]
fn an_unknown_token_is_refused_and_nothing_changes() {
    let toy = &toy::ALL[2];
    for mut engine in [load(toy, &options()), cpu(toy, Element::F32)] {
        let mut session = engine.session();
        session.push(&[1, toy.vocab as u32, 2]);
        let before = state(&engine, &session);
        let error = engine.step(&mut [&mut session]).unwrap_err().to_string();
        assert!(error.contains("257"), "{error}");
        assert_eq!(before, state(&engine, &session));
        session.rewind(1);
        session.push(&[toy.vocab as u32 - 1]);
        assert!(engine.step(&mut [&mut session]).is_ok());
    }
}

#[test]
fn more_sessions_than_a_step_has_are_refused() {
    let toy = &toy::ALL[3];
    let mut engine = load(toy, &EngineOptions { sequences: 2, ..options() });
    let mut sessions: Vec<_> = (0..3).map(|_| engine.session()).collect();
    sessions.iter_mut().for_each(|s| s.push(&[3]));
    let mut all: Vec<_> = sessions.iter_mut().collect();
    assert!(matches!(engine.step(&mut all).unwrap_err(), Error::Request { .. }));
    assert_eq!(engine.step(&mut all[..2]).unwrap().len(), 2);
}

#[test]
fn a_lost_device_is_an_error_and_no_hang() {
    let toy = &toy::ALL[0];
    let mut engine = load(toy, &options());
    let mut session = engine.session();
    session.push(&tokens(22, 20, toy));
    engine.step(&mut [&mut session]).unwrap();
    let before = state(&engine, &session);
    engine.lose_device();
    let began = Instant::now();
    for _ in 0..3 {
        let error = engine.step(&mut [&mut session]).unwrap_err();
        assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    }
    assert!(matches!(engine.logits(&mut session).unwrap_err(), Error::DeviceLost { .. }));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert_eq!(before, state(&engine, &session));
}

#[test]
fn decoding_ahead_draws_what_steps_draw() {
    let toy = &toy::ALL[1];
    for mut engine in [load(toy, &EngineOptions { sequences: 3, pages: 64, ..options() }), cpu(toy, Element::F32)] {
        let n = engine.capacity().sequences.min(3);
        let prompts: Vec<_> = [5, 17, 30].into_iter().take(n).collect();
        let mut sessions: Vec<_> = (0..2 * n).map(|_| engine.session()).collect();
        for (i, s) in sessions.iter_mut().enumerate() {
            s.sampling = Sampling { temperature: if i % n == 0 { 0.0 } else { 1.0 }, seed: 3, ..Sampling::default() };
            s.push(&tokens(23, prompts[i % n], toy));
        }
        let (ahead, by_steps) = sessions.split_at_mut(n);
        let mut expected = vec![vec![]; n];
        for _ in 0..30 {
            for (s, all) in by_steps.iter_mut().zip(&mut expected) {
                all.extend(engine.step(&mut [s]).unwrap()[0]);
            }
        }
        let mut found = vec![vec![]; n];
        for (s, all) in ahead.iter_mut().zip(&mut found) {
            all.extend(engine.step(&mut [s]).unwrap()[0]);
        }
        // Broken off twice, then to a limit.
        for (most, take) in [(100, 7), (100, 1), (21, 100)] {
            let mut taken = 0;
            let mut refs: Vec<_> = ahead.iter_mut().collect();
            engine
                .decode(&mut refs, most, |ids| {
                    found.iter_mut().zip(ids).for_each(|(all, id)| all.push(*id));
                    taken += 1;
                    if taken == take { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
                })
                .unwrap();
        }
        assert_eq!(found, expected, "{}", engine.device());
        for (a, b) in ahead.iter().zip(by_steps.iter()) {
            assert_eq!((a.tokens(), a.pending()), (b.tokens(), b.pending()));
        }
        // What was computed beyond is forgotten: the logits are those of steps.
        let mut last = |s: &mut Session| engine.logits(s).unwrap().pop().unwrap();
        assert!(ahead.iter_mut().zip(by_steps).all(|(a, b)| last(a) == last(b)));
    }
}

#[test]
fn decoding_ahead_ends_where_the_context_or_the_pages_do() {
    let toy = &toy::ALL[0];
    let mut engine = load(toy, &EngineOptions { sequences: 2, pages: CONTEXT / 16 + 2, batch: 128, ..options() });
    let drawn = |engine: &mut Engine, session: &mut Session| {
        let mut n = 0;
        let result = engine.decode(&mut [session], usize::MAX, |_| {
            n += 1;
            ControlFlow::Continue(())
        });
        result.map(|()| n)
    };
    let (mut a, mut b) = (engine.session(), engine.session());
    a.push(&tokens(24, CONTEXT - 10, toy));
    engine.step(&mut [&mut a]).unwrap();
    assert_eq!(drawn(&mut engine, &mut a).unwrap(), 10);
    assert_eq!(a.tokens().len(), CONTEXT + 1);
    assert!(matches!(drawn(&mut engine, &mut a), Err(Error::ContextFull { .. })));
    b.push(&tokens(25, 30, toy));
    engine.step(&mut [&mut b]).unwrap();
    assert_eq!(drawn(&mut engine, &mut b).unwrap(), 2);
    let before = state(&engine, &b);
    assert!(matches!(drawn(&mut engine, &mut b), Err(Error::OutOfPages { .. })));
    assert_eq!(before, state(&engine, &b));
    b.push(&[1]);
    assert!(matches!(drawn(&mut engine, &mut b), Err(Error::Request { .. })));
}

#[test]
fn decoding_on_a_lost_device_is_an_error_that_keeps_what_was_drawn() {
    let toy = &toy::ALL[2];
    let mut engine = load(toy, &options());
    let mut session = engine.session();
    session.push(&tokens(26, 9, toy));
    engine.step(&mut [&mut session]).unwrap();
    let before = state(&engine, &session);
    engine.lose_device();
    let error = engine.decode(&mut [&mut session], 9, |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(error, Error::DeviceLost { .. }), "{error}");
    assert_eq!(before, state(&engine, &session));
}
