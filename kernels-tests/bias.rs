use crate::harness::{catches, catches_any_fault, check};

#[test]
fn equals_its_reference_on_odd_shapes() {
    check("bias");
}

#[test]
fn planted_faults_are_caught() {
    let faults = [("b[id.x]", "b[id.y]"), ("+= b", "-= b"), ("id.y >= step.n_tokens", "id.y >= step.n_tokens - 1u")];
    catches("bias", &faults);
    catches_any_fault("bias");
}
