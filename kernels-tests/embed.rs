use crate::harness::{catches, catches_any_fault, check};

#[test]
fn equals_its_reference() {
    check("embed");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "embed",
        &[
            ("tokens[t].x", "tokens[t].y"),
            ("ids[row - SAMPLED]", "ids[0]"),
            ("row >= SAMPLED", "row < SAMPLED"),
            ("row - ROW0", "row"),
            ("t * C4", "t * GROUPS"),
            ("row < ROW0", "row <= ROW0"),
            ("row >= ROW0 + N", "row >= ROW0 + N - 1u"),
            ("t >= step.n_tokens", "t > step.n_tokens - 2u"),
            ("unpack4xI8", "unpack4xU8"),
            ("0x0f0f0f0fu", "0x0f0f0f07u"),
            ("row % 8u", "row % 4u"),
            ("row / 8u * 8u", "row"),
            ("(i % 2u)", "(i / 2u)"),
        ],
    );
    catches_any_fault("embed");
}
