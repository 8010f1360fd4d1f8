use crate::harness::{catches, catches_any_fault, check};

#[test]
fn sums_errors_and_norms_of_measured_sequences() {
    check("aoc_gate");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_gate",
        &[
            ("trial[at] - y", "trial[at] + y"),
            ("errors[at].xy + sum", "sum"),
            ("sequence.w + MEASURED", "sequence.w"),
            ("g * OWN", "0u"),
        ],
    );
    catches_any_fault("aoc_gate");
}
