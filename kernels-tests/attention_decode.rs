use crate::harness::{catches_any_fault, check};

#[test]
fn equals_its_reference_and_unseen_keys_and_values_never_show() {
    check("attention_decode");
}

#[test]
fn planted_faults_are_caught() {
    catches_any_fault("attention_decode");
}
