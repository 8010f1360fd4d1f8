use crate::harness::{catches, catches_any_fault, check};

#[test]
fn copies_rows_in_their_order_to_pages_of_the_tree() {
    check("aoc_gather");
}

#[test]
fn planted_faults_are_caught() {
    catches(
        "aoc_gather",
        &[
            ("v_pages[to_at] = v_pages", "v_pages[to_at] = k_pages"),
            ("order[g * CAPACITY + i]", "order[i]"),
            ("pages[i / PAGE]", "pages[0]"),
        ],
    );
    catches_any_fault("aoc_gather");
}
