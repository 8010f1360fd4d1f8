use crate::harness::{catches, catches_any_fault, check};

#[test]
fn lie_along_the_direction_of_their_segment() {
    check("aoc_keys");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_keys",
        &[
            ("i / step.segment", "i % step.segment"),
            ("add_dot(sums[r]", "add_dot(sums[0]"),
            ("order[rows + i + r]", "order[rows + i]"),
        ],
    );
    catches_any_fault("aoc_keys");
}
