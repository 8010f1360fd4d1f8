use crate::harness::{catches, catches_any_fault, check};

#[test]
fn equals_its_reference_on_odd_shapes_and_large_values() {
    check("softcap");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "softcap",
        &[
            ("x / cap", "x * cap"),
            ("return cap *", "return"),
            ("-0.33333312", "-0.33"),
            ("0.13330514", "0.13"),
            ("-10.0, 10.0", "-2.0, 2.0"),
            ("select(far, near", "select(near, far"),
            ("sign(y) * (1.0", "(1.0"),
            ("y.z, CAP", "y.w, CAP"),
            ("id.y >= step.n_outputs", "id.y >= step.n_outputs - 1u"),
        ],
    );
    catches_any_fault("softcap");
}
