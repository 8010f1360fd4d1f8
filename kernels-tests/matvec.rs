use farpast::memory::Tile;
use farpast::program::Mode;

use crate::cases::{Case, of};
use crate::harness::{catches, catches_any_fault, check, result_bits};

#[test]
fn equals_its_reference_in_every_format() {
    check("matvec");
}

#[test]
fn matvec_and_matmul_give_the_same_bits_in_any_tile() {
    for case in of("matvec") {
        let Case::Linear { format, n, k, t, add, outputs, parts, values, .. } = case else { unreachable!() };
        // Every number of tokens, and a K that is no whole group where the format has such.
        if t.len() != 17 && k != 33 {
            continue;
        }
        let bits = |mode, tile| {
            let case = Case::Linear { mode, tile, format, n, k, t, add, outputs, parts, values };
            let cols = n.next_multiple_of(4);
            let bits = result_bits(&case.setup()).into_iter().enumerate();
            bits.filter(|(i, _)| i % cols < n).map(|(_, bits)| bits).collect::<Vec<_>>()
        };
        let matvec = bits(Mode::Decode, Tile::SOFTWARE);
        for (mode, tile) in
            [(Mode::Decode, Tile::HARDWARE), (Mode::Prefill, Tile::SOFTWARE), (Mode::Prefill, Tile::HARDWARE)]
        {
            assert!(matvec == bits(mode, tile), "{mode:?} in {tile:?} differs: {} [{n}, {k}]", format.name);
        }
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
