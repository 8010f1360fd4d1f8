use farpast::memory::Host;
use farpast::sampler::{NO_TOKEN, Sampling, sample};

use crate::cases::{self, Random};
use crate::harness::{catches, catches_any_fault, check, run};
use crate::sampler::{counts, expect_distribution, softmax};

/// Where the draws of `cases::sample` stand.
const POSITION: usize = 3;

fn draw(rows: &[Vec<f32>], samplings: &[Sampling]) -> Vec<u32> {
    let setup = cases::sample(rows, samplings);
    let ids = setup.program.dispatches[0].written().next().unwrap();
    let Host::U32(found) = run(&setup, &[ids]).remove(0) else { unreachable!() };
    found[rows.len()..2 * rows.len()].to_vec()
}

fn defined(rows: &[Vec<f32>], samplings: &[Sampling]) -> Vec<u32> {
    rows.iter().zip(samplings).map(|(row, s)| sample(row, s.draw(POSITION))).collect()
}

#[test]
fn equals_its_reference() {
    check("sample");
}

#[test]
fn draws_are_those_of_the_definition() {
    let mut random = Random(11);
    for v in [5, 63, 64, 65, 1009, 7003] {
        let n = 300;
        let rows: Vec<Vec<f32>> = (0..n).map(|_| (0..v).map(|_| random.signed(5.0)).collect()).collect();
        let samplings: Vec<_> = (0..n)
            .map(|_| Sampling {
                temperature: 0.1 + 2.0 * random.unit(),
                top_k: if random.below(2) == 0 { 0 } else { 1 + random.below(v + 2) as u32 },
                top_p: if random.below(2) == 0 { 1.0 } else { random.unit() },
                typical_p: if random.below(2) == 0 { 1.0 } else { random.unit() },
                min_p: if random.below(2) == 0 { 0.0 } else { 0.3 * random.unit() },
                seed: random.next(),
                ..Sampling::default()
            })
            .collect();
        let (found, expected) = (draw(&rows, &samplings), defined(&rows, &samplings));
        let different: Vec<_> = (0..n).filter(|i| found[*i] != expected[*i]).collect();
        // f32 and f64 part where two scores, or a share and top-p, are equal to f32 accuracy.
        assert!(
            different.len() <= 1,
            "V = {v}: {different:?}: {:?}",
            different.iter().map(|i| &samplings[*i]).collect::<Vec<_>>()
        );
    }
}

#[test]
fn draws_follow_the_softmax() {
    let logits = vec![0.3, -0.5, 1.5, 0.0, 1.1, -1.3, 0.9];
    let n = 4000;
    let samplings = |top_k, top_p| -> Vec<_> {
        (0..n).map(|seed| Sampling { temperature: 0.8, top_k, top_p, seed, ..Sampling::default() }).collect()
    };
    let rows = vec![logits.clone(); n as usize];
    let found = draw(&rows, &samplings(0, 1.0));
    expect_distribution(&counts(n as u32, 7, |i| found[i as usize]), &softmax(&logits, 0.8));
    let found = draw(&rows, &samplings(3, 1.0));
    let kept: Vec<f32> = logits.iter().map(|x| if *x >= 0.9 { *x } else { f32::NEG_INFINITY }).collect();
    expect_distribution(&counts(n as u32, 7, |i| found[i as usize]), &softmax(&kept, 0.8));
}

#[test]
fn numbers_are_drawn_beside_nan_and_infinities() {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let rows: &[&[f32]] = &[
        &[nan, 1.0, 2.0, -nan, 1.5],
        &[nan, nan, -nan, nan, nan],
        &[-infinity, -infinity, -infinity, -infinity, -infinity],
        &[-infinity, nan, -3.0, -infinity, -nan],
        &[nan, infinity, 3.0, infinity, -infinity],
        &[f32::MAX, f32::MIN, 0.0, -0.0, 1e-40],
    ];
    let samplings = [
        Sampling::default(),
        Sampling { temperature: 1.0, seed: 4, ..Sampling::default() },
        Sampling { temperature: 0.7, top_k: 2, seed: 5, ..Sampling::default() },
        Sampling { temperature: 0.7, top_p: 0.6, seed: 6, ..Sampling::default() },
        Sampling { temperature: 1.3, top_k: 1, top_p: 0.6, seed: 7, ..Sampling::default() },
        Sampling { temperature: 0.7, typical_p: 0.6, seed: 8, ..Sampling::default() },
        Sampling { temperature: 0.7, typical_p: 0.9, min_p: 0.2, seed: 9, ..Sampling::default() },
    ];
    let seeded = (0..12).flat_map(|seed| samplings.clone().map(|s| Sampling { seed, ..s })).collect::<Vec<_>>();
    let each_row = |row: &&[f32]| seeded.iter().map(|s| (row.to_vec(), s.clone())).collect::<Vec<_>>();
    let (all, each): (Vec<_>, Vec<_>) = rows.iter().flat_map(each_row).unzip();
    let (found, expected) = (draw(&all, &each), defined(&all, &each));
    for i in 0..all.len() {
        assert_eq!(found[i], expected[i], "{:?} of {:?}", each[i], all[i]);
        assert!(found[i] == NO_TOKEN || !all[i][found[i] as usize].is_nan());
    }
}

#[test]
fn ties_and_extremes_of_top_k_and_top_p_are_as_defined() {
    let mut random = Random(12);
    let v = 97;
    // Few different values, so that ties stand at most cuts.
    let row = |random: &mut Random| (0..v).map(|_| random.below(5) as f32 * 0.75 - 1.0).collect::<Vec<f32>>();
    let mut rows = Vec::new();
    let mut samplings = Vec::new();
    for top_k in [0, 1, 2, 30, v as u32 - 1, v as u32, v as u32 + 1, u32::MAX] {
        for top_p in [0.0, 1e-30, 0.017, 0.43, 0.977, 1.0, 2.0] {
            rows.push(row(&mut random));
            samplings.push(Sampling { temperature: 0.9, top_k, top_p, seed: random.next(), ..Sampling::default() });
        }
    }
    let (found, expected) = (draw(&rows, &samplings), defined(&rows, &samplings));
    for i in 0..rows.len() {
        assert_eq!(found[i], expected[i], "{:?}", samplings[i]);
    }
}

#[test]
fn noise_is_right_in_its_far_tail() {
    // All logits equal: the token with the largest noise is drawn, u within 1e-5 of 1.
    let (v, n) = (49_999, 24);
    let rows = vec![vec![0.0; v]; n];
    let samplings: Vec<_> =
        (0..n as u64).map(|seed| Sampling { temperature: 1.0, seed, ..Sampling::default() }).collect();
    assert_eq!(draw(&rows, &samplings), defined(&rows, &samplings));
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "sample",
        &[
            ("1.0 / temperature", "temperature"),
            ("key ^ hash(i)", "key ^ i"),
            ("f32(want.top_k)", "f32(want.top_k + 1u)"),
            ("select(want.top_p, ", "select(0.5 * want.top_p, "),
            ("want.typical_p, by_distance", "0.5 * want.typical_p, by_distance"),
            ("log(want.min_p)", "0.5 * log(want.min_p)"),
            ("moments.y / moments.x", "moments.y"),
            ("want.row * STRIDE", "want.row * V"),
            ("score > value", "score >= value"),
            (">> 9u", ">> 10u"),
        ],
    );
    catches_any_fault("sample");
}
