//! Its cases are attention_decode's: parts are what the reference of that leaves, NaN where a split has no pages.

use crate::harness::{catches, catches_any_fault};

#[test]
fn planted_faults_are_caught() {
    catches(
        "attention_merge",
        &[
            ("b * RUNS", "b * (RUNS - 1u)"),
            ("sum != 0.0", "sum >= 0.0"),
            ("part.x - new_top", "new_top - part.x"),
            ("sequence.z * H + h", "b * H"),
            ("h >= H", "h >= H - 1u"),
        ],
    );
    catches_any_fault("attention_merge");
}
