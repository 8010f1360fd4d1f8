use crate::harness::{catches, catches_any_fault, check};

#[test]
fn is_a_step_of_the_power_iteration() {
    check("aoc_refine");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_refine",
        &[
            ("keys[i] - mean", "keys[i]"),
            ("max(largest, 1e-30)", "1.0"),
            ("before[i]) * POINTS", "before[first]) * POINTS"),
        ],
    );
    catches_any_fault("aoc_refine");
}
