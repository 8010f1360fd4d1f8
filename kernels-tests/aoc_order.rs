use crate::harness::{catches, catches_any_fault, check};

#[test]
fn sorts_each_segment_and_has_a_place_for_what_is_no_number() {
    check("aoc_order");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_order",
        &[
            ("other < own", "other > own"),
            ("sorted[i] < key", "sorted[i] > key"),
            ("half > 0u", "half > 1u"),
            ("run / 2u", "run / 4u"),
        ],
    );
    catches_any_fault("aoc_order");
}
