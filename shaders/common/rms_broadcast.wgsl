// 1 / sqrt(mean of the squares of the n elements from x[start] on + eps): eight invocations of a subgroup sum an eighth each
// and tell the others.
fn rms_scale(start: u32, n: u32, eps: f32, lane: Lane) -> f32 {
    let n4 = (n + 3u) / 4u;
    var squares = vec4(0.0);
    for (var first = 0u; first < n4; first += 8u) {
        let i = first + lane.in_subgroup % 8u;
        let v = x[start + min(i, n4 - 1u)];
        let is_element = vec4(n) > 4u * i + vec4(0u, 1u, 2u, 3u);
        squares = select(squares, fma(v, v, squares), is_element);
    }
    let sum = (squares.x + squares.y) + (squares.z + squares.w);
    let low = (subgroupBroadcast(sum, 0u) + subgroupBroadcast(sum, 1u)) + (subgroupBroadcast(sum, 2u) + subgroupBroadcast(sum, 3u));
    let high = (subgroupBroadcast(sum, 4u) + subgroupBroadcast(sum, 5u)) + (subgroupBroadcast(sum, 6u) + subgroupBroadcast(sum, 7u));
    return 1.0 / sqrt((low + high) / f32(n) + eps);
}
