use crate::harness::{catches, catches_any_fault, catches_by_coopmat, check, check_coopmat};

#[test]
fn equals_its_reference_for_weights_of_two_formats_side_by_side() {
    check("linear_norm");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "linear_norm",
        &[
            ("ROW0 + n", "n"),
            ("vectors[i] * v * x_scale", "vectors[i] * v"),
            ("sum / f32(n) + eps", "sum / f32(n + 1u) + eps"),
            ("n < N &&", "n < N - 1u &&"),
        ],
    );
    catches_any_fault("linear_norm");
}

#[test]
fn equals_its_reference_by_coopmat() {
    check_coopmat("linear_norm");
}

#[test]
fn planted_faults_by_coopmat_are_caught() {
    let faults = [("ROW0 + n", "n"), ("n < N &&", "n < N - 1u &&"), ("min(t + token, last)", "min(token, last)")];
    catches_by_coopmat("linear_norm", &faults);
}
