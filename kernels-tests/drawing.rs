//! Tokens that engines draw, with all that sampling has: they are those of the CPU definition, from the logits that the model has.

use std::ops::ControlFlow;

use farpast::Error;
use farpast::engine::{Backend, Engine, EngineOptions, Recorded};
use farpast::kernel::Step;
use farpast::memory::Element;
use farpast::program::Mode;
use farpast::sampler::{Dry, Logprobs, Penalties, Sampling, adjust, sample};
use farpast::session::Session;
use farpast::weights::Weights;

use crate::cases::Random;
use crate::model::test_model;
use crate::sampler::{counts, expect_distribution, softmax};
use crate::toy::{self, Toy};

fn toy() -> &'static Toy {
    &toy::ALL[1]
}

fn options() -> EngineOptions {
    crate::harness::gpu();
    let backend = Backend::Gpu(crate::harness::device());
    EngineOptions { backend, batch: 48, sequences: 4, kv: Element::F32, ..EngineOptions::default() }
}

fn load(options: &EngineOptions) -> Engine {
    Engine::load(&toy().weights(), options, |_| ()).unwrap()
}

fn on_cpu() -> Engine {
    load(&EngineOptions { backend: Backend::Cpu, ..options() })
}

/// Few different ones, so that they come again.
fn prompt(seed: u64, n: usize) -> Vec<u32> {
    let mut random = Random(seed);
    (0..n).map(|_| random.below(5) as u32 * 17).collect()
}

/// Each option alone, and all of them.
pub fn samplings() -> Vec<Sampling> {
    let penalties = Penalties { last_n: 30, repeat: 1.3, frequency: 0.4, presence: 0.3 };
    let dry = Dry { multiplier: 0.8, breakers: [17].into_iter().collect(), ..Dry::default() };
    let logit_bias = vec![(34, 3.0), (2, -100.0), (7, 1.5)];
    let plain = Sampling { temperature: 1.1, seed: 5, ..Sampling::default() };
    vec![
        plain.clone(),
        Sampling { penalties: Penalties { repeat: 1.5, ..Penalties::default() }, ..Sampling::default() },
        Sampling {
            penalties: Penalties { last_n: usize::MAX, frequency: 0.5, ..Penalties::default() },
            ..plain.clone()
        },
        Sampling { penalties: Penalties { last_n: 2, presence: 2.0, ..Penalties::default() }, ..Sampling::default() },
        Sampling { dry: dry.clone(), ..Sampling::default() },
        Sampling { logit_bias: logit_bias.clone(), ..plain.clone() },
        Sampling { min_p: 0.1, ..plain.clone() },
        Sampling { typical_p: 0.7, ..plain.clone() },
        Sampling {
            temperature: 0.9,
            top_k: 50,
            typical_p: 0.9,
            top_p: 0.95,
            min_p: 0.02,
            penalties,
            dry,
            logit_bias,
            seed: 9,
        },
    ]
}

/// A session behind a prompt, which draws so.
fn session(engine: &Engine, sampling: &Sampling, prompt: &[u32]) -> Session {
    let mut session = engine.session();
    session.sampling = sampling.clone();
    session.push(prompt);
    session
}

fn by_steps(engine: &mut Engine, session: &mut Session, n: usize) -> Vec<u32> {
    (0..n).map(|_| engine.step(&mut [session]).unwrap()[0].unwrap()).collect()
}

fn ahead(engine: &mut Engine, session: &mut Session, n: usize) -> Vec<u32> {
    let mut all = vec![];
    engine
        .decode(&mut [session], n, |ids| {
            all.extend(ids);
            ControlFlow::Continue(())
        })
        .unwrap();
    all
}

#[test]
fn every_option_draws_what_the_definition_draws() {
    for mut engine in [load(&options()), on_cpu()] {
        for (i, sampling) in samplings().iter().enumerate() {
            let mut session = session(&engine, sampling, &prompt(1, 21));
            for _ in 0..30 {
                let history = session.tokens().to_vec();
                let id = engine.step(&mut [&mut session]).unwrap()[0].unwrap();
                let logits = engine.last_logits(1).unwrap().remove(0);
                let expected = sample(&adjust(&logits, sampling, &history, None), sampling.draw(history.len()));
                assert_eq!(id, expected, "sampling {i} after {} tokens, {}", history.len(), engine.device());
            }
        }
    }
}

#[test]
fn every_option_changes_what_is_drawn() {
    let mut engine = load(&options());
    let mut drawn = |sampling: &Sampling| {
        let mut session = session(&engine, sampling, &prompt(1, 21));
        by_steps(&mut engine, &mut session, 40)
    };
    for (i, sampling) in samplings().iter().enumerate().skip(1) {
        let Sampling { temperature, seed, .. } = *sampling;
        let plain = drawn(&Sampling { temperature, seed, ..Sampling::default() });
        assert_ne!(drawn(sampling), plain, "sampling {i}");
    }
}

/// Tokens in flight count, and what was rewound, forked or recalled counts as what stands there now.
#[test]
fn steps_ahead_rewinds_forks_and_recalled_prefixes_draw_what_steps_draw() {
    for mut engine in [load(&options()), on_cpu()] {
        for (i, sampling) in samplings().iter().enumerate() {
            let prompt = prompt(2, 37);
            let mut expected = session(&engine, sampling, &prompt);
            let expected = by_steps(&mut engine, &mut expected, 31);
            let mut found = session(&engine, sampling, &prompt);
            let mut ids = by_steps(&mut engine, &mut found, 1);
            ids.extend(ahead(&mut engine, &mut found, 30));
            assert_eq!(ids, expected, "sampling {i} ahead, {}", engine.device());

            found.rewind(prompt.len() + 9);
            let mut fork = found.fork();
            for session in [&mut found, &mut fork] {
                let again = [by_steps(&mut engine, session, 1), ahead(&mut engine, session, 12)].concat();
                assert_eq!(again, expected[9..22], "sampling {i} rewound");
            }
            engine.keep(&found);
            let mut recalled = session(&engine, sampling, &[&prompt[..], &expected[..5]].concat());
            assert!(engine.recall(&mut recalled) >= 16);
            let again = [by_steps(&mut engine, &mut recalled, 1), ahead(&mut engine, &mut recalled, 9)].concat();
            assert_eq!(again, expected[5..15], "sampling {i} recalled");
        }
    }
}

#[test]
fn a_session_draws_in_any_batch_what_it_draws_alone() {
    let mut engine = load(&EngineOptions { sequences: 9, batch: 48, pages: 90, ..options() });
    let all = samplings();
    let mut alone = vec![];
    for (i, sampling) in all.iter().enumerate() {
        let mut s = session(&engine, sampling, &prompt(3, 4 + 2 * i));
        s.logprobs = Some(3);
        let ids = by_steps(&mut engine, &mut s, 25);
        alone.push((ids, s.take_logprobs()));
    }
    let mut sessions: Vec<_> = (0..all.len()).map(|i| session(&engine, &all[i], &prompt(3, 4 + 2 * i))).collect();
    sessions.iter_mut().for_each(|s| s.logprobs = Some(3));
    let mut found = vec![vec![]; all.len()];
    while sessions.iter().any(|s| s.pending().len() != 1) {
        let mut refs: Vec<_> = sessions.iter_mut().filter(|s| s.pending().len() != 1).collect();
        engine.step(&mut refs).unwrap();
    }
    found.iter_mut().zip(&sessions).for_each(|(all, s)| all.extend(s.tokens().last()));
    let mut refs: Vec<_> = sessions.iter_mut().collect();
    engine
        .decode(&mut refs, 24, |ids| {
            found.iter_mut().zip(ids).for_each(|(all, id)| all.push(*id));
            ControlFlow::Continue(())
        })
        .unwrap();
    for ((i, found), (s, alone)) in found.into_iter().enumerate().zip(sessions.iter_mut().zip(alone)) {
        assert_eq!((found, s.take_logprobs()), alone, "sampling {i}");
    }
}

#[test]
fn draws_follow_the_distribution_of_the_definition() {
    let mut engine = load(&options());
    let penalties = Penalties { repeat: 1.2, frequency: 0.2, presence: 0.1, ..Penalties::default() };
    let dry = Dry { multiplier: 0.5, ..Dry::default() };
    let sampling =
        Sampling { temperature: 1.4, top_k: 12, penalties, dry, logit_bias: vec![(34, 1.0)], ..Sampling::default() };
    let prompt = prompt(4, 30);
    let mut s = session(&engine, &sampling, &prompt);
    engine.step(&mut [&mut s]).unwrap();
    let logits = engine.last_logits(1).unwrap().remove(0);
    let adjusted = adjust(&logits, &sampling, &prompt, None);
    assert_ne!(adjusted, logits);
    for (typical_p, top_p, min_p) in
        [(1.0, 1.0, 0.0), (0.6, 1.0, 0.0), (1.0, 0.8, 0.0), (1.0, 1.0, 0.3), (0.8, 0.9, 0.1)]
    {
        let sampling = Sampling { typical_p, top_p, min_p, ..sampling.clone() };
        // What is kept is what is ever drawn by the definition.
        let v = adjusted.len();
        let kept = counts(4000, v, |seed| {
            sample(&adjusted, Sampling { seed: u64::from(seed), ..sampling.clone() }.draw(prompt.len()))
        });
        let kept_logits: Vec<f32> =
            adjusted.iter().zip(&kept).map(|(x, n)| if *n > 0 { *x } else { f32::NEG_INFINITY }).collect();
        let n = kept.iter().filter(|n| **n > 0).count();
        assert!(n > 1 && (n < 12 || typical_p * top_p * (1.0 - min_p) == 1.0), "{n} kept");
        let found = counts(1200, v, |seed| {
            s.rewind(prompt.len());
            s.sampling = Sampling { seed: u64::from(seed) + 7000, ..sampling.clone() };
            engine.step(&mut [&mut s]).unwrap()[0].unwrap()
        });
        expect_distribution(&found, &softmax(&kept_logits, 1.4));
    }
}

/// Of the model's own logits, whatever sampling makes of them.
#[test]
fn logprobs_are_those_of_the_logits() {
    for mut engine in [load(&options()), on_cpu()] {
        for sampling in samplings() {
            let mut s = session(&engine, &sampling, &prompt(5, 40));
            let expect = |found: &Logprobs, id: u32, logits: &[f32], n: usize| {
                let p = softmax(logits, 1.0);
                let of = |id: u32| p[id as usize].ln();
                assert_eq!((found.id, found.top.len()), (id, n));
                assert!((f64::from(found.logprob) - of(id)).abs() < 1e-5);
                let mut order: Vec<_> = (0..logits.len() as u32).collect();
                order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
                for ((id, logprob), expected) in found.top.iter().zip(order) {
                    assert!(*id == expected && (f64::from(*logprob) - of(*id)).abs() < 1e-5, "{found:?}");
                }
            };
            for n in [Some(20), Some(0), None] {
                s.logprobs = n;
                let id = engine.step(&mut [&mut s]).unwrap()[0].unwrap();
                let logits = engine.last_logits(1).unwrap().remove(0);
                let found = s.take_logprobs();
                assert_eq!(found.len(), usize::from(n.is_some()));
                found.iter().for_each(|found| expect(found, id, &logits, n.unwrap()));
            }
            s.logprobs = Some(4);
            let ids = ahead(&mut engine, &mut s, 7);
            let found = s.take_logprobs();
            assert!(s.take_logprobs().is_empty());
            let first = s.tokens().len() - 7;
            let mut computed = engine.session();
            computed.push(&s.tokens()[..s.tokens().len() - 1]);
            let rows = engine.logits(&mut computed).unwrap();
            for ((found, id), logits) in found.iter().zip(&ids).zip(&rows[first - 1..]) {
                expect(found, *id, logits, 4);
            }
        }
    }
}

#[test]
fn what_no_token_can_be_drawn_by_is_refused_and_nothing_changes() {
    let mut engine = load(&options());
    let vocab = engine.config().vocab as u32;
    let penalties = |repeat, frequency| Penalties { repeat, frequency, ..Penalties::default() };
    let dry = |multiplier, base| Dry { multiplier, base, ..Dry::default() };
    let default = Sampling::default;
    let wrong = [
        (Sampling { min_p: 1.5, ..default() }, "min-p"),
        (Sampling { typical_p: f32::NAN, ..default() }, "typical-p"),
        (Sampling { penalties: penalties(0.0, 0.0), ..default() }, "repeat penalty"),
        (Sampling { penalties: penalties(1.0, f32::INFINITY), ..default() }, "frequency penalty"),
        (Sampling { dry: dry(-1.0, 1.75), ..default() }, "DRY multiplier"),
        (Sampling { dry: dry(1.0, 0.5), ..default() }, "DRY base"),
        (Sampling { logit_bias: vec![(vocab, 1.0)], ..default() }, "logit bias"),
        (Sampling { logit_bias: vec![(1, f32::NEG_INFINITY)], ..default() }, "logit bias"),
        (Sampling { logit_bias: vec![(1, 0.0); 301], ..default() }, "logit bias"),
    ];
    let mut s = session(&engine, &default(), &[1, 2, 3]);
    for (sampling, what) in wrong {
        s.sampling = sampling;
        let e = engine.step(&mut [&mut s]).unwrap_err();
        assert!(matches!(&e, Error::Request { .. }) && e.to_string().contains(what), "{e}");
        assert_eq!((s.tokens().len(), s.pending().len()), (3, 3));
    }
    s.sampling = default();
    s.logprobs = Some(21);
    assert!(engine.step(&mut [&mut s]).unwrap_err().to_string().contains("logprobs"));
    s.logprobs = Some(20);
    assert!(engine.step(&mut [&mut s]).unwrap()[0].is_some());
}

#[test]
fn a_plain_step_dispatches_nothing_for_what_it_does_not_want() {
    let weights = Weights::open(test_model()).unwrap();
    let options = EngineOptions { backend: Backend::Cpu, context: 64, ..EngineOptions::default() };
    let Recorded { config, programs, .. } = Recorded::new(&weights, &options, None).unwrap();
    let plain = Step { n_tokens: 1, n_outputs: 1, n_sequences: 1, n_tiles: 1, max_pages: 1, ..Step::default() };
    let dispatched = |step: Step| programs[Mode::Decode].dispatches.iter().filter(|d| d.runs(&step)).count();
    assert!(dispatched(plain) <= 6 * config.layers + 4, "{} dispatches", dispatched(plain));
    assert_eq!(dispatched(Step { n_penalized: 1, n_logprobs: 1, ..plain }), dispatched(plain) + 2);
}
