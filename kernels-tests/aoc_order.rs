use crate::harness::{catches, catches_any_fault, check};

#[test]
fn sorts_each_segment_and_has_a_place_for_what_is_no_number() {
    check("aoc_order");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_order",
        &[("j < i", "j > i"), ("other < key", "other > key"), ("bits >= 0x80000000u", "bits < 0x80000000u")],
    );
    catches_any_fault("aoc_order");
}
