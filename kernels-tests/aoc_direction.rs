use crate::harness::{catches, catches_any_fault, check};

#[test]
fn is_the_covariance_with_the_axis_of_largest_variance() {
    check("aoc_direction");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_direction",
        &[
            ("variance > largest", "variance < largest"),
            ("/ f32(step.segment)", ""),
            ("max(largest, 1e-30)", "1.0"),
            ("- sum * mean", ""),
        ],
    );
    catches_any_fault("aoc_direction");
}
