use crate::harness::{catches, catches_any_fault, check};

#[test]
fn gives_back_what_was_kept_for_trials() {
    check("aoc_recall");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_recall",
        &[("OF_TRIALS + turn", "turn"), ("h % R", "0u"), ("% POINTS", ""), ("% 2u == 1u { x", "% 2u == 0u { x")],
    );
    catches_any_fault("aoc_recall");
}
