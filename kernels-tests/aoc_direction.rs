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
            ("variances[other] > variances[best]", "variances[other] < variances[best]"),
            ("/ f32(step.segment)", ""),
            ("max(variances[best], 1e-30)", "1.0"),
        ],
    );
    catches_any_fault("aoc_direction");
}
