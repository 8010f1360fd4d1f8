use std::collections::HashMap;

use farpast::memory::{Host, stride};
use farpast::sampler::{Dry, Penalties, Sampling, TokenSet, adjust};

use crate::cases::{self, Penalized, Random};
use crate::harness::{catches, catches_any_fault, check, run};

/// The rows that the device makes of them.
fn adjusted(all: &[Penalized]) -> Vec<Vec<f32>> {
    let setup = cases::penalize(all);
    let (b, v) = (all.len(), all[0].logits.len());
    let logits = setup.program.dispatches[0].written().next().unwrap();
    let Host::F32(found) = run(&setup, &[logits]).remove(0) else { unreachable!() };
    let outputs = setup.memory.capacity.outputs;
    (0..b).map(|i| found[(outputs + (i + 1) % b) * stride(v)..][..v].to_vec()).collect()
}

fn request(v: usize, sampling: Sampling, history: &[u32], pending: &[u32]) -> Penalized {
    let mut random = Random(history.len() as u64);
    let logits = (0..v).map(|_| random.signed(5.0)).collect();
    Penalized { logits, sampling, history: history.to_vec(), pending: pending.to_vec(), allowed: None }
}

#[test]
fn equals_its_reference() {
    check("penalize");
}

/// Each option and all of them, whatever the host knows of the tokens.
#[test]
fn rows_are_those_of_the_definition() {
    let mut random = Random(41);
    let penalties = |last_n, repeat, frequency, presence| Penalties { last_n, repeat, frequency, presence };
    let v = 61;
    let some: TokenSet = (0..v as u32).filter(|id| id % 7 == 3).collect();
    let dry = |multiplier, allowed_length, last_n, breakers: &TokenSet| Dry {
        multiplier,
        base: 1.6,
        allowed_length,
        last_n,
        breakers: breakers.clone(),
    };
    let plain = Sampling::default();
    let with = |penalties, dry: Dry, logit_bias: &[(u32, f32)]| Sampling {
        penalties,
        dry,
        logit_bias: logit_bias.to_vec(),
        ..Sampling::default()
    };
    let none = TokenSet::default();
    let samplings = [
        plain.clone(),
        with(penalties(64, 1.4, 0.0, 0.0), Dry::default(), &[]),
        with(penalties(64, 1.0, 0.3, 0.0), Dry::default(), &[]),
        with(penalties(64, 1.0, 0.0, 0.7), Dry::default(), &[]),
        with(penalties(3, 1.2, 0.1, -0.2), Dry::default(), &[]),
        with(Penalties::default(), dry(0.9, 2, usize::MAX, &none), &[]),
        with(Penalties::default(), dry(0.9, 1, 40, &some), &[]),
        with(Penalties::default(), Dry::default(), &[(5, 2.5), (60, -100.0), (5, -1.0)]),
        with(penalties(usize::MAX, 1.1, 0.2, 0.3), dry(0.5, 0, 77, &some), &[(3, 1.0), (9, -2.0)]),
    ];
    for (i, sampling) in samplings.iter().enumerate() {
        let tokens: Vec<u32> = (0..150).map(|_| random.below(6) as u32 * 9 % v as u32).collect();
        let all: Vec<_> = [(150, 0), (149, 1), (147, 3), (2, 2), (0, 3), (1, 0), (0, 0)]
            .map(|(known, pending)| request(v, sampling.clone(), &tokens[..known], &tokens[known..known + pending]))
            .into();
        for (found, p) in adjusted(&all).iter().zip(&all) {
            let history = [p.history.as_slice(), &p.pending].concat();
            let expected = adjust(&p.logits, sampling, &history, None);
            let same = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-5 * (1.0 + b.abs());
            let n = (p.history.len(), p.pending.len());
            assert!(found.iter().zip(&expected).all(same), "sampling {i}, {n:?} tokens: {found:?} is not {expected:?}");
            let changed = found.iter().zip(&p.logits).any(|(a, b)| a != b);
            assert!(!changed || sampling.adjusts(), "sampling {i}");
        }
    }
}

#[test]
fn the_same_bits_come_out_whatever_the_host_knows() {
    let mut random = Random(42);
    let v = 23;
    for _ in 0..20 {
        let tokens: Vec<u32> = (0..40).map(|_| random.below(4) as u32 * 5).collect();
        let sampling = Sampling {
            penalties: Penalties { last_n: 9, repeat: 1.3, frequency: 0.21, presence: 0.17 },
            dry: Dry { multiplier: 0.77, ..Dry::default() },
            ..Sampling::default()
        };
        let logits: Vec<f32> = (0..v).map(|_| random.signed(5.0)).collect();
        let of = |pending: usize| Penalized {
            logits: logits.clone(),
            ..request(v, sampling.clone(), &tokens[..40 - pending], &tokens[40 - pending..])
        };
        let found = adjusted(&[of(0), of(1), of(2), of(3)]);
        assert!(found.iter().all(|row| *row == found[0]));
        assert_ne!(found[0], logits);
    }
}

#[test]
fn what_is_not_allowed_is_minus_infinity() {
    let allowed: TokenSet = [1, 4, 31, 32, 64].into_iter().collect();
    let sampling = Sampling { logit_bias: vec![(0, 100.0), (4, 1.0)], ..Sampling::default() };
    for v in [5, 33, 65, 100] {
        let mut request = Penalized { allowed: Some(allowed.clone()), ..request(v, sampling.clone(), &[], &[]) };
        request.logits[4] = 2.0;
        let found = adjusted(&[request]).remove(0);
        for (id, x) in found.iter().enumerate() {
            assert_eq!(x.is_finite(), [1, 4, 31, 32, 64].contains(&id), "{id} of {v}");
        }
        assert_eq!(found[4], 3.0);
    }
}

/// A step before has found no token, as a logit was no number: nothing is written for it.
#[test]
fn a_token_that_is_none_changes_nothing() {
    let penalties = Penalties { presence: 1.0, ..Penalties::default() };
    let sampling = Sampling { penalties, ..Sampling::default() };
    let request = request(9, sampling, &[2], &[u32::MAX, 3]);
    let logits = request.logits.clone();
    let changed: HashMap<_, _> = [(2, 1.0), (3, 1.0)].into();
    for (id, x) in adjusted(&[request])[0].iter().enumerate() {
        assert_eq!(*x, logits[id] - changed.get(&id).unwrap_or(&0.0), "{id}");
    }
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "penalize",
        &[
            ("want.row * V4", "want.to * V4"),
            ("x * want.repeat, x / want.repeat", "x / want.repeat, x * want.repeat"),
            ("f32(count) * want.frequency", "want.frequency"),
            ("+ want.presence", "- want.presence"),
            ("codes[p] = codes[q];", "codes[p] = codes[p];"),
            ("codes[p] = e;", "codes[p] = codes[p];"),
            ("want.n_pending - want.n_counted", "0u"),
            ("n - atomicLoad(&broken)", "n"),
            ("code(n - 1u - length)", "code(n - 1u)"),
            ("repeat - 1u)", "repeat)"),
            ("+ 3u * e + 1u]", "+ 3u * e + 2u]"),
            ("(id % 32u)", "(id % 31u)"),
            ("4u * (i % 8u)", "4u * (i % 7u)"),
        ],
    );
    catches_any_fault("penalize");
}
