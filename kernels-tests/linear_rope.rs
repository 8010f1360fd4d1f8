use crate::cases::{Case, of};
use crate::harness::{catches, catches_any_fault, catches_by_coopmat, check, check_coopmat};

#[test]
fn equals_its_reference_on_ragged_batches() {
    check("linear_rope");
}

/// The last tile of q and k is filled with zeros, behind which v's pairs begin in another weight.
#[test]
fn pairs_are_counted_without_what_fills_a_tile() {
    let mut seen = 0;
    for case in of("linear_rope") {
        let Case::LinearRope { dims: d, split: true, .. } = case else { continue };
        let found: Vec<_> =
            case.setup().program.dispatches.iter().filter(|d| d.kernel.name == "linear_rope").cloned().collect();
        let [qk, v] = [d.heads + d.kv_heads, d.kv_heads].map(|heads| heads * d.head_dim / 2);
        let constants = |i: usize| ["PAIR0", "PAIRS"].map(|name| found[i].spec.get_u32(name));
        assert_eq!((constants(0), constants(1)), ([0, qk], [qk, v]));
        seen += usize::from(qk % 8 != 0);
    }
    assert!(seen > 0);
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "linear_rope",
        &[
            ("tokens[t].y", "tokens[t].x"),
            ("kv_row(t, (head - H) % G)", "kv_row(t, 0u)"),
            ("page * G + g", "page + g"),
            ("t * G + g", "t + g"),
            ("slot % PAGE", "(slot + 1u) % PAGE"),
            ("v.x * turn.x - v.y * turn.y", "v.x * turn.x + v.y * turn.y"),
            ("head < H + G && p < R2", "head <= H + G && p < R2"),
            ("p < R2", "p <= R2"),
            ("select(both.xy, both.zw, pair % 2u == 1u)", "both.xy"),
            ("PAIR0 + pair", "pair"),
            ("vectors[i] * v * x_scale", "vectors[i] * v"),
        ],
    );
    catches_any_fault("linear_rope");
}

#[test]
fn equals_its_reference_by_coopmat() {
    check_coopmat("linear_rope");
}

#[test]
fn planted_faults_by_coopmat_are_caught() {
    let faults = [("PAIR0 + pair", "pair"), ("sums[r + 1u]", "sums[r]"), ("pair >= PAIRS", "pair >= PAIRS - 1u")];
    catches_by_coopmat("linear_rope", &faults);
}
