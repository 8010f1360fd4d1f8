use farpast::kernels::AttentionDims;
use farpast::memory::Element;
use farpast::program::Mode;

use crate::cases::{Case, Listed, Sequence, TILES_OF_LINEARS, Values, of};
use crate::harness::{catches_any_fault, check, result_bits, runs};

const DIMS: AttentionDims = AttentionDims { heads: 6, kv_heads: 2, head_dim: 8 };

#[test]
fn equals_its_reference_and_unseen_keys_and_values_never_show() {
    check("attention_prefill");
}

/// In every tile that the device can run, of one token of each sequence.
fn cases(mode: Mode, dims: AttentionDims, kv: Element, sequences: &'static [Sequence]) -> impl Iterator<Item = Case> {
    let case = move |tile| {
        let values = Values::Unit;
        Case::Attention { mode, tile, dims, kv, sequences, values, window: 0, cap: 0.0 }
    };
    TILES_OF_LINEARS.into_iter().map(case).filter(runs)
}

#[test]
fn a_query_that_sees_no_key_answers_0() {
    for mode in [Mode::Prefill, Mode::Decode] {
        let sequences = &[Sequence(3, 1, Listed::Unseen), Sequence(20, 1, Listed::Nothing)];
        for case in cases(mode, DIMS, Element::F32, sequences) {
            let bits = result_bits(&case.setup());
            assert!(bits[..2 * DIMS.heads * DIMS.head_dim].iter().all(|b| f32::from_bits(*b) == 0.0), "{case:?}");
        }
    }
}

#[test]
fn the_order_of_pages_in_memory_changes_no_bit() {
    for kernel in ["attention_prefill", "attention_decode"] {
        for case in of(kernel).into_iter().filter(runs).take(3) {
            let bits = [1, 2, 3].map(|order| result_bits(&case.setup_with(order)));
            assert!(bits[0] == bits[1] && bits[0] == bits[2], "{case:?}");
        }
    }
}

#[test]
fn prefill_and_decode_give_the_same_bits() {
    const SEQUENCES: &[Sequence] = &[
        Sequence(0, 1, Listed::All),
        Sequence(15, 1, Listed::All),
        Sequence(16, 1, Listed::All),
        Sequence(99, 1, Listed::All),
        Sequence(300, 1, Listed::All),
    ];
    let others = AttentionDims { heads: 3, kv_heads: 1, head_dim: 20 };
    for (dims, kv) in [(DIMS, Element::F32), (others, Element::F16), (others, Element::Q8_0), (DIMS, Element::Q4_0)] {
        let [prefill, decode] = [Mode::Prefill, Mode::Decode].map(|mode| {
            let bits = |case: Case| result_bits(&case.setup())[..SEQUENCES.len() * dims.heads * dims.head_dim].to_vec();
            cases(mode, dims, kv, SEQUENCES).map(bits).collect::<Vec<_>>()
        });
        assert!(prefill == decode, "{dims:?}");
    }
}

#[test]
fn planted_faults_are_caught() {
    catches_any_fault("attention_prefill");
}
