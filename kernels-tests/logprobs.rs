use farpast::kernels::{LOGPROBS_ROW, read_logprobs};
use farpast::memory::{Host, stride};
use farpast::sampler::Logprobs;

use crate::cases::{self, Random};
use crate::harness::{catches, catches_any_fault, check, run};

fn logprobs(rows: &[Vec<f32>], wanted: &[(u32, Option<usize>)]) -> Vec<Option<Logprobs>> {
    let setup = cases::logprobs(rows, wanted);
    let t = setup.program.dispatches[0].written().next().unwrap();
    let Host::F32(found) = run(&setup, &[t]).remove(0) else { unreachable!() };
    let found = found.chunks(stride(LOGPROBS_ROW)).zip(wanted);
    found.map(|(row, (id, n))| n.map(|n| read_logprobs(row, *id, n, rows[0].len()))).collect()
}

#[test]
fn equals_its_reference() {
    check("logprobs");
}

#[test]
fn logprobs_are_those_of_the_softmax() {
    let mut random = Random(51);
    for v in [1, 5, 64, 65, 1009] {
        let rows: Vec<Vec<f32>> = (0..7).map(|_| (0..v).map(|_| random.signed(9.0)).collect()).collect();
        let wanted: Vec<_> =
            (0..7).map(|i| (random.below(v) as u32, [Some(20), Some(0), Some(3), None][i % 4])).collect();
        for ((row, (id, n)), found) in rows.iter().zip(&wanted).zip(logprobs(&rows, &wanted)) {
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            let of = |id: u32| f64::from(row[id as usize]) - sum.ln();
            let Some(n) = n else {
                assert_eq!(found, None);
                continue;
            };
            let found = found.unwrap();
            let close = |found: f32, id: u32| assert!((f64::from(found) - of(id)).abs() < 1e-5, "{found} of {id}");
            close(found.logprob, *id);
            let mut order: Vec<_> = (0..v as u32).collect();
            order.sort_by(|a, b| of(*b).total_cmp(&of(*a)));
            assert_eq!(found.id, *id);
            assert_eq!(found.top.iter().map(|(id, _)| *id).collect::<Vec<_>>(), order[..(*n).min(v)]);
            found.top.iter().for_each(|(id, logprob)| close(*logprob, *id));
        }
    }
}

#[test]
fn logits_that_are_no_numbers_have_no_part() {
    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let rows = vec![vec![nan, 1.0, -infinity, 1.0, nan], vec![nan, nan, nan, nan, -infinity]];
    let found = logprobs(&rows, &[(3, Some(5)), (1, Some(2))]);
    let half = 0.5f32.ln();
    assert_eq!(found[0], Some(Logprobs { id: 3, logprob: half, top: vec![(1, half), (3, half)] }));
    assert!(found[1].as_ref().unwrap().top.is_empty());
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "logprobs",
        &[
            ("step.first_id + r", "step.first_id"),
            ("largest + log(sum)", "log(sum)"),
            ("x == most && i >= from_id", "x == most && i >= from_id - 1u"),
            ("k < wanted", "k + 1u < wanted"),
            ("r * STRIDE", "r * V"),
        ],
    );
    catches_any_fault("logprobs");
}
