use crate::harness::{catches, catches_any_fault, check};

#[test]
fn equals_its_reference_in_every_format() {
    check("matmul");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "matmul",
        &[
            ("step.n_outputs", "step.n_tokens"),
            ("step.n_tokens", "(step.n_tokens - 1u)"),
            ("ADD == 1u", "ADD == 0u"),
            ("unpack4xI8", "unpack4xU8"),
        ],
    );
    catches_any_fault("matmul");
}
