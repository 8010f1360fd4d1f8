use crate::harness::{catches, catches_any_fault, check};

#[test]
fn equals_its_reference() {
    check("last_tokens");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "last_tokens",
        &[
            ("outputs[id.y] * C4", "id.y * C4"),
            ("id.y >= step.n_outputs", "id.y >= step.n_outputs - 1u"),
            ("= x[outputs[id.y] * C4 + id.x]", "= x[outputs[id.y] * C4 + id.x + 1u]"),
        ],
    );
    catches_any_fault("last_tokens");
}
