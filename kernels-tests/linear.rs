use farpast::program::Mode;

use crate::cases::{Case, TILES_OF_LINEARS, of};
use crate::harness::{catches, catches_any_fault, check, result_bits, runs};

#[test]
fn equals_its_reference_in_every_format() {
    check("linear");
}

#[test]
fn decode_and_prefill_give_the_same_bits_in_any_tile() {
    for case in of("linear") {
        let Case::Linear { format, n, k, t, add, outputs, parts, values, .. } = case else { unreachable!() };
        // Every number of tokens, and a K that is no whole group where the format has such.
        if t.len() != 17 && k != 33 {
            continue;
        }
        let cases = TILES_OF_LINEARS.into_iter().flat_map(|tile| {
            let case = |mode| Case::Linear { mode, tile, format, n, k, t, add, outputs, parts, values };
            [case(Mode::Decode), case(Mode::Prefill)]
        });
        let bits = |case: Case| {
            let cols = n.next_multiple_of(4);
            let bits = result_bits(&case.setup()).into_iter().enumerate();
            bits.filter(|(i, _)| i % cols < n).map(|(_, bits)| bits).collect::<Vec<_>>()
        };
        let mut all = cases.filter(runs).map(|case| (case, bits(case)));
        let (_, first) = all.next().unwrap();
        for (case, bits) in all {
            assert!(first == bits, "{case:?} differs");
        }
    }
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "linear",
        &[
            ("step.n_outputs", "step.n_tokens"),
            ("step.n_tokens", "(step.n_tokens - 1u)"),
            ("ADD == 1u", "ADD == 0u"),
            ("unpack4xI8", "unpack4xU8"),
            ("min(t + 2u, last)", "min(t + 1u, last)"),
        ],
    );
    catches_any_fault("linear");
}
