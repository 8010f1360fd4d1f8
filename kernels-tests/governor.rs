//! What one submission may hold, on devices of any speed.

use std::time::Duration;

use farpast::gpu::{Governor, SUBMISSION};

/// Runs steps of `dispatches`, given by their workgroups, on a device that takes `each` for one, and returns the submissions' times.
fn step(governor: &mut Governor, dispatches: &[u64], each: Duration) -> Vec<Duration> {
    let (mut first, mut times) = (0, Vec::new());
    while first < dispatches.len() {
        let (taken, workgroups) = governor.take(dispatches[first..].iter().copied());
        assert!(taken > 0 && workgroups == dispatches[first..first + taken].iter().sum::<u64>());
        first += taken;
        let time = each * workgroups as u32;
        governor.learn(workgroups, time);
        times.push(time);
    }
    times
}

const DISPATCHES: [u64; 60] = [16; 60];

#[test]
fn the_first_submission_is_one_dispatch() {
    let governor = Governor::default();
    assert_eq!(governor.take([700, 1, 1].into_iter()), (1, 700));
    assert_eq!(governor.take([].into_iter()), (0, 0));
}

#[test]
fn no_submission_is_too_long_on_any_device_unless_one_dispatch_is() {
    for nanoseconds in [1, 1_000, 100_000, 1_000_000, 5_000_000, 50_000_000] {
        let each = Duration::from_nanos(nanoseconds);
        let mut governor = Governor::default();
        let longest = SUBMISSION.max(16 * each);
        for _ in 0..20 {
            let times = step(&mut governor, &DISPATCHES, each);
            assert!(times.iter().all(|time| *time <= longest), "{each:?}: {times:?}");
        }
        let pieces = step(&mut governor, &DISPATCHES, each).len();
        assert_eq!(pieces == 1, each * 16 * 60 <= SUBMISSION / 4, "{each:?}: {pieces} submissions");
    }
}

#[test]
fn a_step_of_more_tokens_is_taken_in_more_pieces_at_once() {
    let (mut governor, each) = (Governor::default(), Duration::from_micros(50));
    for _ in 0..10 {
        step(&mut governor, &DISPATCHES, each);
    }
    assert_eq!(step(&mut governor, &DISPATCHES, each).len(), 1);
    let times = step(&mut governor, &DISPATCHES.map(|n| 32 * n), each);
    assert!(times.len() > 1 && times.iter().all(|time| *time <= SUBMISSION), "{times:?}");
}

#[test]
fn it_recovers_from_a_slow_moment_and_adapts_to_a_slow_device() {
    let (mut governor, fast) = (Governor::default(), Duration::from_micros(10));
    step(&mut governor, &DISPATCHES, fast);
    governor.learn(960, Duration::from_secs(20));
    assert!(step(&mut governor, &DISPATCHES, fast).len() > 1);
    step(&mut governor, &DISPATCHES, fast);
    assert_eq!(step(&mut governor, &DISPATCHES, fast).len(), 1);

    let slow = Duration::from_millis(3);
    step(&mut governor, &DISPATCHES, slow);
    let times = step(&mut governor, &DISPATCHES, slow);
    assert!(times.iter().all(|time| *time <= SUBMISSION), "{times:?}");
}
