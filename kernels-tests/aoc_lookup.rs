use crate::harness::{catches_in_each_tier, check};

#[test]
fn is_the_near_past_with_anchors_and_rows_of_the_leaves_chosen() {
    check("aoc_lookup");
}

#[test]
fn planted_faults_are_caught() {
    let shared = [
        ("+ log_rows", "- log_rows"),
        ("best.second > GAP", "best.second < GAP"),
        ("select(turn % R,", "select(0u,"),
        ("= is_of_trials(position)", "= !is_of_trials(position)"),
        ("far[tree - 1u].x == at.size", "far[tree - 1u].x == 2u * at.size"),
    ];
    let by_workgroup = [("/ all[r]", ""), ("ranks[other] > ranks[c]", "ranks[other] < ranks[c]")];
    let by_subgroup = [
        ("* all[r]", ""),
        ("subgroupShuffle(other, l) > mine", "subgroupShuffle(other, l) < mine"),
        ("(lane + turn + k) % LANES", "lane"),
        ("min(i + j, own - 1u)", "i"),
        ("== first + lane", "== lane"),
    ];
    catches_in_each_tier("aoc_lookup", [&[&shared[..], &by_workgroup].concat(), &[&shared[..], &by_subgroup].concat()]);
}
