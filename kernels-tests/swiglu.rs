use crate::harness::{catches, catches_any_fault, check};

#[test]
fn equals_its_reference_on_odd_shapes_and_large_values() {
    check("swiglu");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "swiglu",
        &[
            ("1.0 + exp", "1.001 + exp"),
            ("min(-gate[i], vec4(80.0))", "-gate[i] * 1.01"),
            ("* up[i]", "* up[0]"),
            ("id.y * F4 + id.x", "id.y * F4 + id.x + 1u"),
            ("id.y >= step.n_tokens", "id.y >= step.n_tokens - 1u"),
        ],
    );
    catches_any_fault("swiglu");
}
