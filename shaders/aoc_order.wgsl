// Sorts the rows of each segment by their keys, from its runs, which are sorted: the halves are the segments of the next depth. A row's
// place is the number of keys below its own, of equal ones those before it, which of each other run a binary search finds.
// One invocation for each (place i, g).
override CAPACITY: u32;
override RUN: u32;  // a power of two

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> sorted: array<u32>;       // [G, CAPACITY]: keys as u32 of the same order
@group(0) @binding(2) var<storage, read> before: array<u32>;       // [G, CAPACITY]: the rows they are of
@group(0) @binding(3) var<storage, read_write> order: array<u32>;  // [G, CAPACITY]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= step.rows { return; }
    let run = min(RUN, step.segment);
    let i = id.y * CAPACITY + id.x;
    let own = id.y * CAPACITY + id.x / run * run;
    let first = id.y * CAPACITY + id.x / step.segment * step.segment;
    let key = sorted[i];
    var place = first + (i - own);
    for (var other = first; other < first + step.segment; other += run) {
        if other == own { continue; }
        var below = 0u;
        for (var half = run / 2u; half > 0u; half /= 2u) {
            below += select(0u, half, is_below(other + below + half - 1u, key, other < own));
        }
        place += below + select(0u, 1u, is_below(other + below, key, other < own));
    }
    order[place] = before[i];
}

fn is_below(i: u32, key: u32, or_equal: bool) -> bool {
    return sorted[i] < key || (or_equal && sorted[i] == key);
}
