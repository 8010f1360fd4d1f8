//! The CPU definition of a draw, by properties.

use farpast::sampler::{Draw, Dry, HISTORY, NO_TOKEN, Penalties, Sampling, adjust, sample};

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

/// Which of four tokens of probabilities 0.5, 0.25, 0.125 and 0.125 are ever drawn.
fn kept(draw: impl Fn(u32) -> Draw) -> Vec<bool> {
    let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
    counts(3000, 4, |key| sample(&logits, draw(key))).iter().map(|c| *c > 0).collect()
}

#[test]
fn min_p_keeps_what_is_likely_enough_beside_the_likeliest() {
    let kept = |min_p| kept(|key| Draw { min_p, ..draw(1.0, 0, 1.0, key) });
    assert_eq!(kept(0.0), [true; 4]);
    assert_eq!(kept(0.2), [true; 4]);
    assert_eq!(kept(0.3), [true, true, false, false]);
    assert_eq!(kept(0.6), [true, false, false, false]);
    assert_eq!(kept(1.0), [true, false, false, false]);
}

/// The entropy is 1.75 ln 2; surprises of 1, 2, 3 and 3 ln 2 are 0.75, 0.25, 1.25 and 1.25 ln 2 from it.
#[test]
fn typical_p_keeps_the_most_typical_until_p() {
    let kept = |typical_p| kept(|key| Draw { typical_p, ..draw(1.0, 0, 1.0, key) });
    for one in [0.0, 0.1, 0.24] {
        assert_eq!(kept(one), [false, true, false, false], "p = {one}");
    }
    assert_eq!(kept(0.3), [true, true, false, false]);
    assert_eq!(kept(0.7), [true, true, false, false]);
    assert_eq!(kept(0.8), [true; 4]);
    assert_eq!(kept(1.0), [true; 4]);
}

#[test]
fn penalties_are_those_of_llama_cpp() {
    let logits = [3.0, -3.0, 1.5, 0.5];
    let adjusted =
        |penalties, history: &[u32]| adjust(&logits, &Sampling { penalties, ..Sampling::default() }, history, None);
    let penalties = Penalties { last_n: 4, repeat: 1.5, frequency: 0.25, presence: 0.5 };
    // Token 0 twice and token 1 once among the last four; token 3 before those.
    assert_eq!(adjusted(penalties, &[3, 3, 0, 1, 0, 2]), [2.0 - 1.0, -4.5 - 0.75, 1.0 - 0.75, 0.5]);
    assert_eq!(adjusted(Penalties { last_n: 0, ..penalties }, &[0, 1]), logits);
    assert_eq!(adjusted(Penalties::default(), &[0, 1]), logits);
    let all = Penalties { last_n: usize::MAX, ..penalties };
    let long = [&[3][..], &[2; HISTORY]].concat();
    assert_eq!(adjusted(all, &long)[3], 0.5, "no more than so many are looked at");
    assert_ne!(adjusted(all, &long[..HISTORY])[3], 0.5);
}

#[test]
fn dry_takes_more_the_longer_the_repetition() {
    let logits = [0.0; 9];
    let adjusted = |dry: &Dry, history: &[u32]| {
        adjust(&logits, &Sampling { dry: dry.clone(), ..Sampling::default() }, history, None)
    };
    let dry = Dry { multiplier: 0.5, base: 2.0, ..Dry::default() };
    // 4 would lengthen 1 2 3; nothing else repeats two tokens or more.
    let history = [1, 2, 3, 4, 5, 1, 2, 3];
    assert_eq!(adjusted(&dry, &history), [0.0, 0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, 0.0]);
    // 4 after 2 3, then 6 after 1 2 3: each by its own longest.
    let two = [7, 2, 3, 4, 1, 2, 3, 6, 1, 2, 3];
    assert_eq!(adjusted(&dry, &two)[4..7], [-0.5, 0.0, -1.0]);
    // 2 breaks: only what stands behind it counts. 4 breaks: it loses nothing.
    let breaking = |id: u32| Dry { breakers: [id].into_iter().collect(), ..dry.clone() };
    assert_eq!(adjusted(&breaking(2), &history), logits);
    assert_eq!(adjusted(&breaking(4), &history), logits);
    assert_eq!(adjusted(&breaking(8), &history)[4], -1.0);
    assert_eq!(adjusted(&Dry { allowed_length: 4, ..dry.clone() }, &history), logits);
    assert_eq!(adjusted(&Dry { last_n: 4, ..dry.clone() }, &history), logits);
    assert_eq!(adjusted(&Dry { multiplier: 0.0, ..dry }, &history), logits);
}

#[test]
fn biases_are_added_and_nothing_is_drawn_but_what_is_allowed() {
    let sampling = Sampling { logit_bias: vec![(1, 2.0), (1, 0.5), (0, -1.0)], ..Sampling::default() };
    let allowed = [1, 2].into_iter().collect();
    assert_eq!(adjust(&[1.0, 1.0, 1.0], &sampling, &[], None), [0.0, 3.5, 1.0]);
    assert_eq!(adjust(&[1.0, 1.0, 1.0], &sampling, &[], Some(&allowed)), [f32::NEG_INFINITY, 3.5, 1.0]);
}
