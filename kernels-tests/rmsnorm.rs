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
            ("f32(n) + eps", "f32(n) - eps"),
            ("sum / f32(n)", "sum / f32(n + 1u)"),
            ("w[i]", "w[0]"),
            ("OUTPUTS == 1u", "OUTPUTS == 0u"),
        ],
    );
    catches_any_fault("rmsnorm");
}
