use crate::harness::{catches, catches_any_fault, check};

#[test]
fn are_sorted_and_have_a_place_for_what_is_no_number() {
    check("aoc_runs");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_runs",
        &[("j < i", "j > i"), ("other < key", "other > key"), ("bits >= 0x80000000u", "bits < 0x80000000u")],
    );
    catches_any_fault("aoc_runs");
}
