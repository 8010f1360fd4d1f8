use crate::harness::{catches, catches_any_fault, check};

#[test]
fn are_means_of_rows_or_of_children() {
    check("aoc_nodes");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_nodes",
        &[
            ("mean[d] /= f32(children)", "mean[d] /= 2.0"),
            ("is_value { mean", "!is_value { mean"),
            ("select(2u * node, LEAF * i", "select(2u * node, LEAF * node"),
            ("nodes + node / PAGE", "nodes"),
        ],
    );
    catches_any_fault("aoc_nodes");
}
