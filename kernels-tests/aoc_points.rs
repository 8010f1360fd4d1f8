use crate::harness::{catches, catches_any_fault, check};

#[test]
fn scores_of_the_queries_in_either_half_of_a_page() {
    check("aoc_points");
}

#[test]
fn planted_faults_are_caught() {
    catches("aoc_points", &[("in_values { q[j]", "!in_values { q[j]"), ("* SCALE;", ";"), ("= i; }", "= i + 1u; }")]);
    catches_any_fault("aoc_points");
}
