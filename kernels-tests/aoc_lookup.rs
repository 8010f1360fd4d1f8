use crate::harness::{catches, catches_any_fault, check};

#[test]
fn is_the_near_past_with_anchors_and_rows_of_the_leaves_chosen() {
    check("aoc_lookup");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_lookup",
        &[
            ("+ log_rows", "- log_rows"),
            ("/ all[r]", ""),
            ("ranks[other] > ranks[c]", "ranks[other] < ranks[c]"),
            ("first.second > GAP", "first.second < GAP"),
            ("i % R * D4", "0u"),
            ("far[other].x == size", "far[other].x == 2u * size"),
        ],
    );
    catches_any_fault("aoc_lookup");
}
