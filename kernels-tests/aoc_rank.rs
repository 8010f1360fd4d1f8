use crate::harness::{catches, catches_any_fault, check};

#[test]
fn is_the_number_of_directions_that_rows_spread_in() {
    check("aoc_rank");
}

#[test]
fn planted_faults_are_caught() {
    catches("aoc_rank", &[("dot(c, c)", "c.x"), ("other == p", "other != p"), ("step.rows / n * P4", "P4")]);
    catches_any_fault("aoc_rank");
}
