use crate::harness::{catches, catches_any_fault, check};

#[test]
fn equals_its_reference_on_odd_shapes_and_large_values() {
    check("geglu");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "geglu",
        &[
            ("0.044715", "0.044"),
            ("0.7978845608", "0.79"),
            ("-2.0 * z", "-z"),
            ("vec4(-10.0)", "vec4(-2.0)"),
            ("* up[i]", "* up[0]"),
            ("id.y >= step.n_tokens", "id.y >= step.n_tokens - 1u"),
        ],
    );
    catches_any_fault("geglu");
}
