//! The CPU definition of a draw, by properties.

use farpast::sampler::{Draw, NO_TOKEN, Sampling, sample};

use crate::cases::Random;

fn draw(temperature: f32, top_k: u32, top_p: f32, key: u32) -> Draw {
    Draw { temperature, top_p, top_k, key, min_p: 0.0, typical_p: 1.0 }
}

/// How often each token is drawn with keys 0 .. n.
pub fn counts(n: u32, v: usize, mut draw: impl FnMut(u32) -> u32) -> Vec<u32> {
    let mut counts = vec![0; v];
    (0..n).for_each(|key| counts[draw(key) as usize] += 1);
    counts
}

/// Fails where counts are not those of the distribution: chi-squared, all tokens expected at least five times.
pub fn expect_distribution(counts: &[u32], probabilities: &[f64]) {
    let n: f64 = counts.iter().map(|c| f64::from(*c)).sum();
    let mut chi = 0.0;
    for (count, p) in counts.iter().zip(probabilities) {
        assert!(*p == 0.0 || p * n >= 5.0, "probability {p} of {n} draws");
        match *p {
            0.0 => assert_eq!(*count, 0, "a token that is not kept was drawn"),
            p => chi += (f64::from(*count) - p * n).powi(2) / (p * n),
        }
    }
    let freedom = probabilities.iter().filter(|p| **p > 0.0).count() as f64 - 1.0;
    // The 1 - 1e-5 quantile, nearly: Wilson and Hilferty's normal approximation.
    let bound = freedom * (1.0 - 2.0 / (9.0 * freedom) + 4.27 * (2.0 / (9.0 * freedom)).sqrt()).powi(3);
    assert!(chi < bound, "chi-squared is {chi}, above {bound} of {freedom} degrees of freedom: {counts:?}");
}

pub fn softmax(logits: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = logits.iter().map(|x| (f64::from(*x) / temperature).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

#[test]
fn temperature_0_takes_the_first_largest_number() {
    assert_eq!(sample(&[1.0, 3.0, 2.0, 3.0], draw(0.0, 0, 1.0, 1)), 1);
    assert_eq!(sample(&[f32::NAN, -3.0, f32::NAN, -2.0], draw(0.0, 0, 1.0, 1)), 3);
    assert_eq!(sample(&[f32::NAN, f32::NEG_INFINITY], draw(0.0, 0, 1.0, 1)), NO_TOKEN);
    assert_eq!(sample(&[f32::NAN, f32::NEG_INFINITY], draw(1.0, 0, 1.0, 1)), NO_TOKEN);
}

#[test]
fn draws_follow_the_softmax() {
    let logits = [0.0, 1.5, -1.0, 0.7, 2.0, 0.1];
    for temperature in [1.0, 0.6, 2.5] {
        let found = counts(20_000, 6, |key| sample(&logits, draw(temperature, 0, 1.0, key)));
        expect_distribution(&found, &softmax(&logits, temperature.into()));
    }
}

#[test]
fn top_k_keeps_the_k_largest_and_what_ties_with_them() {
    let logits = [0.0, 1.0, 1.0, 2.0, -1.0];
    let kept =
        |k| counts(3000, 5, |key| sample(&logits, draw(1.0, k, 1.0, key))).iter().map(|c| *c > 0).collect::<Vec<_>>();
    assert_eq!(kept(1), [false, false, false, true, false]);
    assert_eq!(kept(2), [false, true, true, true, false]);
    assert_eq!(kept(3), [false, true, true, true, false]);
    assert_eq!(kept(4), [true, true, true, true, false]);
    for all in [0, 5, 6, u32::MAX] {
        assert_eq!(kept(all), [true; 5], "k = {all}");
    }
}

#[test]
fn top_p_keeps_the_likeliest_until_p_and_what_ties_with_them() {
    // Probabilities 0.5, 0.25, 0.125, 0.125.
    let logits = [0.125f32, 0.5, 0.125, 0.25].map(f32::ln);
    let kept =
        |p| counts(3000, 4, |key| sample(&logits, draw(1.0, 0, p, key))).iter().map(|c| *c > 0).collect::<Vec<_>>();
    for one in [0.0, 1e-30, 0.3, 0.49] {
        assert_eq!(kept(one), [false, true, false, false], "p = {one}");
    }
    assert_eq!(kept(0.6), [false, true, false, true]);
    assert_eq!(kept(0.8), [true; 4]);
    assert_eq!(kept(1.0), [true; 4]);
}

#[test]
fn a_draw_depends_on_seed_and_position_alone() {
    let mut random = Random(5);
    let logits: Vec<f32> = (0..300).map(|_| random.signed(2.0)).collect();
    let s = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
    let ids = |seed| (0..50).map(|p| sample(&logits, s(seed).draw(p))).collect::<Vec<_>>();
    assert_eq!(ids(1), ids(1));
    assert_ne!(ids(1), ids(2));
    assert_ne!(ids(1), ids(1 << 32), "both halves of a seed count");
    let found = ids(1);
    assert!(found.iter().any(|id| *id != found[0]), "positions draw apart");
}
