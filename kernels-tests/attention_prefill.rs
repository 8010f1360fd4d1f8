use farpast::kernels::AttentionDims;
use farpast::memory::Element;
use farpast::program::Mode;

use crate::cases::{Case, Listed, Sequence, Values, of};
use crate::harness::{catches_any_fault, check, result_bits};

const DIMS: AttentionDims = AttentionDims { heads: 6, kv_heads: 2, head_dim: 8 };

#[test]
fn equals_its_reference_and_unseen_keys_and_values_never_show() {
    check("attention_prefill");
}

#[test]
fn a_query_that_sees_no_key_answers_0() {
    for mode in [Mode::Prefill, Mode::Decode] {
        let sequences = &[Sequence(3, 1, Listed::Unseen), Sequence(20, 1, Listed::Nothing)];
        let case = Case::Attention {
            mode,
            dims: DIMS,
            kv: Element::F32,
            sequences,
            values: Values::Unit,
            window: 0,
            cap: 0.0,
        };
        let bits = result_bits(&case.setup());
        assert!(bits[..2 * DIMS.heads * DIMS.head_dim].iter().all(|b| f32::from_bits(*b) == 0.0), "{mode:?}");
    }
}

#[test]
fn the_order_of_pages_in_memory_changes_no_bit() {
    for kernel in ["attention_prefill", "attention_decode"] {
        for case in of(kernel).into_iter().take(2) {
            let bits = [1, 2, 3].map(|order| result_bits(&case.setup_with(order)));
            assert!(bits[0] == bits[1] && bits[0] == bits[2], "{case:?}");
        }
    }
}

#[test]
fn prefill_and_decode_agree() {
    let sequences: &[Sequence] = &[
        Sequence(0, 1, Listed::All),
        Sequence(15, 1, Listed::All),
        Sequence(16, 1, Listed::All),
        Sequence(99, 1, Listed::All),
    ];
    for (dims, kv) in [(DIMS, Element::F32), (AttentionDims { heads: 3, kv_heads: 1, head_dim: 20 }, Element::F16)] {
        let [a, b] = [Mode::Prefill, Mode::Decode].map(|mode| {
            let case = Case::Attention { mode, dims, kv, sequences, values: Values::Unit, window: 0, cap: 0.0 };
            let bits = result_bits(&case.setup());
            bits[..sequences.len() * dims.heads * dims.head_dim].to_vec()
        });
        let most = a.iter().zip(&b).map(|(a, b)| (f32::from_bits(*a) - f32::from_bits(*b)).abs()).fold(0.0, f32::max);
        println!("prefill and decode attention, {dims:?}: largest difference {most:e}, same bits: {}", a == b);
        assert!(most <= 1e-6, "{dims:?}: {most:e}");
    }
}

#[test]
fn planted_faults_are_caught() {
    catches_any_fault("attention_prefill");
}
