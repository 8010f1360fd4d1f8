use crate::harness::{catches, catches_any_fault, check};

#[test]
fn equals_its_reference_on_odd_shapes() {
    check("output_norm");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "output_norm",
        &[
            ("outputs[group.x] * C4", "group.x * C4"),
            ("group.x >= step.n_outputs", "group.x >= step.n_outputs - 1u"),
            ("w[i] * x[row + i]", "w[i] * x[row + i + 1u]"),
            ("sum / f32(n) + eps", "sum / f32(n + 1u) + eps"),
        ],
    );
    catches_any_fault("output_norm");
}
