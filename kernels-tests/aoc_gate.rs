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
            ("+ d] - y", "+ d] + y"),
            ("TRIAL] += sum", "TRIAL] = sum"),
            ("sequence.w + MEASURED", "sequence.w"),
            ("error / max(norm, 1e-30)", "error"),
            ("near[answer].z", "near[answer].x"),
        ],
    );
    catches_any_fault("aoc_gate");
}
