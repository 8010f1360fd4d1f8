use crate::harness::{catches, catches_any_fault, check};

#[test]
fn sums_relative_errors_of_all_tokens() {
    check("aoc_gate");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_gate",
        &[
            ("+ d] - y", "+ d] + y"),
            ("TRIAL] += sum", "TRIAL] = sum"),
            ("error / max(norm, 1e-30)", "error"),
            ("near[answer].z", "near[answer].x"),
        ],
    );
    catches_any_fault("aoc_gate");
}
