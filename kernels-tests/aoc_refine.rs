use crate::harness::{catches, catches_any_fault, check};

#[test]
fn is_a_step_of_the_power_iteration() {
    check("aoc_refine");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_refine",
        &[("products - sum", "products + sum"), ("max(size, 1e-30)", "1.0"), ("order[i]) * P4", "order[first]) * P4")],
    );
    catches_any_fault("aoc_refine");
}
