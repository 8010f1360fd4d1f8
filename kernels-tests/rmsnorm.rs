use crate::harness::{catches, catches_any_fault, check};

#[test]
fn equals_its_reference_on_odd_shapes_and_large_values() {
    check("rmsnorm");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "rmsnorm",
        &[
            ("step.n_outputs", "(step.n_outputs - 1u)"),
            ("+ EPS", "- EPS"),
            ("f32(C)", "f32(C4 * 4u)"),
            ("w[i]", "w[0]"),
            ("OUTPUTS == 1u", "OUTPUTS == 0u"),
        ],
    );
    catches_any_fault("rmsnorm");
}
