//! Drafts change nothing of what is drawn, whoever guesses and however wrong.

use std::ops::ControlFlow;

use farpast::Error;
use farpast::attention::Attention;
use farpast::attention::aoc::AocOptions;
use farpast::chat::tokenizer;
use farpast::constrain::{Grammar, Grammars};
use farpast::engine::{Backend, Engine, EngineOptions};
use farpast::memory::{Bytes, Element};
use farpast::sampler::{Logprobs, Sampling};
use farpast::session::Session;
use farpast::speculation::{DraftCounts, Speculation};
use farpast::weights::Weights;

use crate::cases::Random;
use crate::drawing::samplings;
use crate::gguf_writer::GgufWriter;
use crate::toy::{self, Toy};
use crate::toy_chat::{self, toy_of};

/// One that takes every chance.
const EAGER: Speculation = Speculation { draft_max: 15, draft_min: 1, lookup_max: 4, lookup_min: 1 };

fn options() -> EngineOptions {
    crate::harness::gpu();
    let backend = Backend::Gpu(crate::harness::device());
    EngineOptions { backend, batch: 48, sequences: 4, ..EngineOptions::default() }
}

fn load(weights: &Weights, options: &EngineOptions) -> Engine {
    let mut engine = Engine::load(weights, options, |_| ()).unwrap();
    if matches!(options.backend, Backend::Gpu(_)) {
        engine.poison_free_pages().unwrap();
    }
    engine
}

fn toy(name: &str) -> &'static Toy {
    toy::ALL.iter().find(|toy| toy.name == name).unwrap()
}

/// Few different ones, so that they come again.
fn prompt(seed: u64, n: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..n).map(|_| random.below(5) as u32 * 17).collect()
}

/// A session behind the first token after a prompt.
fn session(engine: &mut Engine, attention: Attention, sampling: &Sampling, prompt: &[u32]) -> Session {
    let mut session = engine.session_with(attention).unwrap();
    session.sampling = sampling.clone();
    session.push(prompt);
    while engine.step(&mut [&mut session]).unwrap()[0].is_none() {}
    session
}

type Output = (Vec<u32>, Vec<Logprobs>);

/// Up to `n` tokens more, with what was thought of each.
fn decode(engine: &mut Engine, session: &mut Session, n: usize) -> Output {
    let mut ids = vec![];
    let each = |drawn: &[u32]| {
        ids.extend(drawn);
        ControlFlow::Continue(())
    };
    engine.decode(&mut [&mut *session], n, each).unwrap();
    assert!(session.tokens().ends_with(&ids) && session.pending().len() == 1, "what was drawn is what it has");
    (ids, session.take_logprobs())
}

/// `n` tokens without drafts and with them, and what came of the drafts: of a draft model where the engine has one.
fn both(
    engine: &mut Engine,
    attention: Attention,
    sampling: &Sampling,
    prompt: &[u32],
    n: usize,
) -> ([Output; 2], DraftCounts) {
    let before = engine.draft_counts();
    let outputs = [None, Some(EAGER)].map(|speculation| {
        let mut session = session(engine, attention, sampling, prompt);
        session.speculation = speculation;
        session.logprobs = Some(2);
        decode(engine, &mut session, n)
    });
    (outputs, since(engine, before))
}

fn since(engine: &Engine, before: DraftCounts) -> DraftCounts {
    let after = engine.draft_counts();
    DraftCounts {
        drafts: after.drafts - before.drafts,
        drafted: after.drafted - before.drafted,
        accepted: after.accepted - before.accepted,
    }
}

#[test]
fn the_longest_match_is_looked_up_and_the_newest_of_equals() {
    let speculation = Speculation { lookup_max: 3, lookup_min: 2, ..Speculation::default() };
    let look_up = |tokens: &[u32], most| speculation.look_up(tokens, most);
    assert_eq!(look_up(&[1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], 3), [4, 9, 2], "a longer one that is older");
    assert_eq!(look_up(&[1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], 2), [5, 1]);
    assert_eq!(look_up(&[6, 1, 2, 3, 4, 7, 1, 2, 3, 5, 6, 1, 2, 3], 1), [5], "no more than three count");
    assert_eq!(look_up(&[7, 8, 7, 8, 7, 8], 5), [7, 8, 7, 8, 7], "periods go on");
    assert_eq!(look_up(&[7, 7, 7], 4), [7; 4]);
    assert!(look_up(&[1, 2, 3, 1], 5).is_empty(), "too short a match");
    for tokens in [&[][..], &[5], &[1, 2, 3]] {
        assert!(look_up(tokens, 5).is_empty(), "{tokens:?}");
    }
    assert!(look_up(&[7, 7, 7], 0).is_empty());
    let never = Speculation { lookup_max: 0, lookup_min: 0, ..speculation };
    assert!(never.look_up(&[7, 7, 7], 4).is_empty());
}

#[test]
fn drafts_change_nothing_of_what_any_model_draws() {
    let mut counts = DraftCounts::default();
    let drawing = [Sampling::default(), Sampling { temperature: 0.8, seed: 3, ..Sampling::default() }];
    for (name, kv) in [
        ("llama", Element::F32),
        ("llama", Element::Q8_0),
        ("qwen2", Element::F16),
        ("qwen3", Element::F16),
        ("gemma3", Element::F16),
        ("gemma2", Element::F32),
        ("llama_window", Element::F16),
    ] {
        let mut engine = load(&toy(name).weights(), &EngineOptions { kv, ..options() });
        for (i, n) in [1, 14, 15, 16, 17, 33].into_iter().enumerate() {
            let sampling = &drawing[i % 2];
            let ([expected, found], more) = both(&mut engine, Attention::Dense, sampling, &prompt(n as u64, n), 45);
            assert_eq!(found, expected, "{name}, KV {kv:?}, {n} tokens");
            counts.drafted += more.drafted;
            counts.accepted += more.accepted;
        }
    }
    println!("{counts:?}");
    assert!(counts.accepted > 100 && counts.drafted > counts.accepted + 100, "{counts:?}");
}

/// Two engines of models that know the same tokens; the second guesses for the first.
fn drafting(options: &EngineOptions, seeds: [u64; 2]) -> Engine {
    let weights = seeds.map(|seed| weights(toy_of(seed, None)));
    let [mut engine, draft] = weights.each_ref().map(|weights| load(weights, options));
    let [own, models] = weights.map(|weights| tokenizer(&weights).unwrap());
    engine.draft_by(draft, &own, &models).unwrap();
    engine
}

fn weights(file: GgufWriter) -> Weights {
    Weights::from_bytes("toy.gguf", Bytes::new(file.write())).unwrap()
}

const BY_MODEL: Speculation = Speculation { lookup_max: 0, ..EAGER };

/// Penalties and DRY see the tokens of a draft that stand before.
#[test]
fn a_draft_model_that_agrees_is_accepted_and_one_that_does_not_is_rejected() {
    for (backend, seeds) in [(options().backend, [7, 7]), (options().backend, [7, 8]), (Backend::Cpu, [7, 7])] {
        let mut engine = drafting(&EngineOptions { backend, ..options() }, seeds);
        for sampling in samplings() {
            let start = |engine: &mut Engine, speculation| {
                let mut s = session(engine, Attention::Dense, &sampling, &prompt(6, 20));
                s.logprobs = Some(2);
                s.speculation = speculation;
                s
            };
            let mut plain = start(&mut engine, None);
            let expected = decode(&mut engine, &mut plain, 60);
            let (mut s, before) = (start(&mut engine, Some(BY_MODEL)), engine.draft_counts());
            // Also where the guesses of a draft that was cut short are there already.
            let found = [17, 1, 2, 40].map(|n| decode(&mut engine, &mut s, n));
            let (ids, logprobs): (Vec<_>, Vec<_>) = found.into_iter().unzip();
            assert_eq!((ids.concat(), logprobs.concat()), expected, "{seeds:?}, {sampling:?}, {}", engine.device());
            let DraftCounts { drafts, drafted, accepted } = since(&engine, before);
            match seeds {
                // The noise is the same.
                [7, 7] => assert!(accepted == drafted && drafted > 40, "{accepted} of {drafted}"),
                // And seldom tried.
                _ => assert!(4 * accepted < drafted && drafts < 20, "{accepted} of {drafted} in {drafts}"),
            }
        }
    }
}

#[test]
fn a_draft_model_without_room_guesses_nothing() {
    let small = EngineOptions { context: 48, ..options() };
    let weights = weights(toy_of(7, None));
    let tokenizer = tokenizer(&weights).unwrap();
    let mut engine = load(&weights, &options());
    engine.draft_by(load(&weights, &small), &tokenizer, &tokenizer).unwrap();
    let greedy = Sampling::default();
    let mut plain = session(&mut engine, Attention::Dense, &greedy, &prompt(6, 30));
    let expected = decode(&mut engine, &mut plain, 60);
    let mut s = session(&mut engine, Attention::Dense, &greedy, &prompt(6, 30));
    s.speculation = Some(BY_MODEL);
    assert_eq!(decode(&mut engine, &mut s, 60), expected);
    let counts = engine.draft_counts();
    assert!(counts.drafted > 0 && counts.drafted < 20, "{counts:?}");
}

#[test]
fn a_draft_model_of_other_tokens_is_refused() {
    let own = weights(toy_of(7, None));
    let mut file = toy_of(7, None);
    let ids = file.fields.iter_mut().find(|field| field.key == b"tokenizer.ggml.tokens").unwrap();
    let at = ids.value.windows(10).rposition(|bytes| bytes == b"<|im_end|>").unwrap();
    ids.value[at..at + 10].copy_from_slice(b"<|im_xyz|>");
    let other = weights(file);
    let options = EngineOptions { backend: Backend::Cpu, ..EngineOptions::default() };
    let [mut engine, draft] = [&own, &other].map(|weights| load(weights, &options));
    let [a, b] = [&own, &other].map(|weights| tokenizer(weights).unwrap());
    let e = engine.draft_by(draft, &a, &b).unwrap_err();
    assert!(matches!(e, Error::Request { .. }) && e.to_string().contains("token 257 = \"<|im_end|>\""), "{e}");
}

/// A step reads pages as it does when each token has a step of its own.
#[test]
fn a_window_of_the_near_past_moves_as_it_does_without_drafts() {
    let mut engine = drafting(&options(), [7, 7]);
    let (mut drafted, mut accepted) = (0, 0);
    for local in [16, 40, 64] {
        for n in [20, 90] {
            let ([expected, found], counts) =
                both(&mut engine, Attention::Window(local), &Sampling::default(), &prompt(2, n), 120);
            assert_eq!(found, expected, "{local} positions behind {n} tokens");
            drafted += counts.drafted;
            accepted += counts.accepted;
        }
    }
    assert!(accepted > 50 && drafted > accepted + 50, "{accepted} of {drafted}");
}

#[test]
fn anchors_that_cover_all_rows_are_drafted_over_and_every_page_comes_back() {
    let aoc = Attention::Aoc(AocOptions { local: 64, budget: 1 << 20, ..AocOptions::default() });
    let options = EngineOptions { aoc: true, context: 2048, pages: 400, batch: 128, kv: Element::F32, ..options() };
    let mut engine = drafting(&options, [7, 7]);
    let all = engine.free_pages();
    let prompt = prompt(3, 570);
    let ([expected, _], _) = both(&mut engine, Attention::Dense, &Sampling::default(), &prompt, 400);
    let mut s = session(&mut engine, aoc, &Sampling::default(), &prompt);
    s.speculation = Some(EAGER);
    let (before, far) = (engine.draft_counts(), s.far());
    assert_eq!(decode(&mut engine, &mut s, 400).0, expected.0);
    assert!(since(&engine, before).accepted > 50 && far == 0 && s.far() == 512, "{} rows", s.far());
    drop(s);
    assert_eq!(engine.free_pages(), all);
}

#[test]
fn what_a_grammar_allows_is_what_it_allows_behind_each_token_of_a_draft() {
    let mut engine = drafting(&options(), [7, 7]);
    let tokenizer = tokenizer(&weights(toy_chat::toy(None))).unwrap();
    let grammars = Grammars::new(&tokenizer, engine.config().vocab).unwrap();
    let (mut looked, mut guessed) = (DraftCounts::default(), DraftCounts::default());
    for (i, grammar) in [
        Grammar::Regex("[0-9]{40}".into()),
        Grammar::Regex("(ab|ac){15,20}x".into()),
        Grammar::Lark("start: word (\" \" word)*\nword: \"yes\" | \"no\"".into()),
    ]
    .iter()
    .enumerate()
    {
        for temperature in [0.0, 1.0] {
            let mut drawn = |speculation, counts: &mut DraftCounts| {
                let mut s = engine.session();
                s.sampling = Sampling { temperature, seed: 4, ..Sampling::default() };
                s.push(&[80, 81]);
                s.constrain(Some(grammars.constraint(grammar).unwrap()));
                s.speculation = speculation;
                engine.step(&mut [&mut s]).unwrap();
                let before = engine.draft_counts();
                let each = |drawn: &[u32]| match tokenizer.stop_ids().contains(&drawn[0]) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                };
                engine.decode(&mut [&mut s], 38, each).unwrap();
                let more = since(&engine, before);
                counts.drafted += more.drafted;
                counts.accepted += more.accepted;
                s.tokens().to_vec()
            };
            let expected = drawn(None, &mut DraftCounts::default());
            assert_eq!(drawn(Some(EAGER), &mut looked), expected, "grammar {i} at {temperature}");
            assert_eq!(drawn(Some(BY_MODEL), &mut guessed), expected, "grammar {i} at {temperature}, by model");
        }
    }
    assert!(looked.accepted > 0 && looked.drafted > looked.accepted && guessed.drafted > 0, "{looked:?}, {guessed:?}");
}

#[test]
fn drafts_end_with_the_context_and_the_limit() {
    for (context, n) in [(64, 40), (63, 40), (65, 47), (80, 1)] {
        let mut engine = load(&toy("llama").weights(), &EngineOptions { context, sequences: 1, ..options() });
        let ([expected, found], _) = both(&mut engine, Attention::Dense, &Sampling::default(), &prompt(9, n), 100);
        assert_eq!(found, expected, "{n} tokens of {context}");
        // The last one has no position itself.
        assert_eq!(found.0.len(), context - n);
    }
    let mut engine = load(&toy("llama").weights(), &options());
    let expected = both(&mut engine, Attention::Dense, &Sampling::default(), &prompt(9, 20), 40).0;
    for most in 1..20 {
        let found = both(&mut engine, Attention::Dense, &Sampling::default(), &prompt(9, 20), most).0;
        assert!(found.iter().all(|found| found.0 == expected[0].0[..most]), "{most}");
    }
}

#[test]
fn breaking_off_within_a_draft_leaves_what_was_passed_on() {
    let mut engine = load(&toy("llama").weights(), &options());
    let free = engine.free_pages();
    let mut plain = session(&mut engine, Attention::Dense, &Sampling::default(), &prompt(9, 20));
    let expected = decode(&mut engine, &mut plain, 60).0;
    drop(plain);
    for n in 1..30 {
        let mut s = session(&mut engine, Attention::Dense, &Sampling::default(), &prompt(9, 20));
        s.speculation = Some(EAGER);
        let mut left = n;
        let each = |_: &[u32]| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        engine.decode(&mut [&mut s], 60, each).unwrap();
        assert_eq!((&s.tokens()[21..], s.pending().len()), (&expected[..n], 1));
        assert!(free - engine.free_pages() <= (21 + n).div_ceil(16));
        let mut fork = s.fork();
        fork.speculation = None;
        engine.step(&mut [&mut fork]).unwrap();
        assert_eq!(fork.tokens()[21..], expected[..n + 1], "after {n}");
        assert_eq!(decode(&mut engine, &mut s, 20).0, expected[n..n + 20], "after {n}");
    }
    assert_eq!(engine.free_pages(), free);
}

/// The pool has pages for what must be there, and none for drafts.
#[test]
fn drafts_give_way_where_pages_are_short() {
    let weights = toy("llama").weights();
    let mut engine = load(&weights, &EngineOptions { context: 96, sequences: 1, pages: 6, ..options() });
    let ([expected, _], _) = both(&mut engine, Attention::Dense, &Sampling::default(), &prompt(9, 20), 44);
    let mut holds = session(&mut engine, Attention::Dense, &Sampling::default(), &prompt(4, 20));
    let mut s = session(&mut engine, Attention::Dense, &Sampling::default(), &prompt(9, 20));
    s.speculation = Some(EAGER);
    assert_eq!(decode(&mut engine, &mut s, 100).0, expected.0[..64 - 20]);
    assert_eq!(engine.free_pages(), 0);
    holds.rewind(0);
}
