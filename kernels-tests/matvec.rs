use farpast::program::Mode;

use crate::cases::{Case, of};
use crate::harness::{catches, catches_any_fault, check, result_bits};

#[test]
fn equals_its_reference_in_every_format() {
    check("matvec");
}

#[test]
fn matvec_and_matmul_give_the_same_bits() {
    for case in of("matvec") {
        let Case::Linear { format, n, k, t, add, outputs, parts, values, .. } = case else { unreachable!() };
        if n * k > 50_000 {
            continue;
        }
        let mode = Mode::Prefill;
        let matmul = Case::Linear { mode, format, n, k, t, add, outputs, parts, values };
        let [a, b] = [case, matmul].map(|case| result_bits(&case.setup()));
        let cols = n.next_multiple_of(4);
        let differs = (0..a.len()).find(|i| i % cols < n && a[*i] != b[*i]);
        assert_eq!(differs, None, "{case:?}: first element that differs");
    }
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "matvec",
        &[
            ("step.n_outputs", "step.n_tokens"),
            ("step.n_tokens", "(step.n_tokens - 1u)"),
            ("ADD == 1u", "ADD == 0u"),
            ("unpack4xI8", "unpack4xU8"),
        ],
    );
    catches_any_fault("matvec");
}
