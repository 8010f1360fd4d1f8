use crate::harness::{catches, catches_any_fault, check};

#[test]
fn equals_its_reference_on_ragged_batches() {
    check("linear_rope");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "linear_rope",
        &[
            ("tokens[t].y", "tokens[t].x"),
            ("slot / PAGE * G + (head - H) % G", "slot / PAGE * G"),
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
