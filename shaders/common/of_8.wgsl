// What 8 invocations of a subgroup have together, told to each. For subgroups of 8 or more.
fn max_of_8(x: f32) -> f32 {
    let pair = max(x, subgroupShuffleXor(x, 1u));
    let four = max(pair, subgroupShuffleXor(pair, 2u));
    return max(four, subgroupShuffleXor(four, 4u));
}

fn sum_of_8(x: f32) -> f32 {
    let pair = x + subgroupShuffleXor(x, 1u);
    let four = pair + subgroupShuffleXor(pair, 2u);
    return four + subgroupShuffleXor(four, 4u);
}
