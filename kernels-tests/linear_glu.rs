use crate::harness::{catches, catches_any_fault, catches_by_coopmat, check, check_coopmat};

#[test]
fn equals_its_reference_with_and_without_a_norm() {
    check("linear_glu");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "linear_glu",
        &[
            ("1.0 + exp(min(-x", "1.001 + exp(min(-x"),
            ("0.044715 * near", "0.045 * near"),
            ("sums[r + 1u]", "sums[r]"),
            ("f < F &&", "f < F - 1u &&"),
            ("vectors[i] * v * x_scale", "vectors[i] * v"),
            ("sum / f32(n) + eps", "sum / f32(n + 1u) + eps"),
        ],
    );
    catches_any_fault("linear_glu");
}

#[test]
fn equals_its_reference_by_coopmat() {
    check_coopmat("linear_glu");
}

#[test]
fn planted_faults_by_coopmat_are_caught() {
    let faults = [("sums[r + 1u]", "sums[r]"), ("f < F &&", "f < F - 1u &&"), ("F0 + f", "f")];
    catches_by_coopmat("linear_glu", &faults);
}
