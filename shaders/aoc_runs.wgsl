// Sorts each run of RUN places, or each segment where it has fewer, by keys: a row's new place is the number of keys below its own, of
// equal ones those before it.
// One invocation for each (place i, g).
override CAPACITY: u32;
override RUN: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> keys: array<f32>;           // [G, CAPACITY]
@group(0) @binding(2) var<storage, read> order: array<u32>;          // [G, CAPACITY]: row at each place
@group(0) @binding(3) var<storage, read_write> sorted: array<u32>;   // [G, CAPACITY]: keys as u32 of the same order
@group(0) @binding(4) var<storage, read_write> before: array<u32>;   // [G, CAPACITY]: the rows they are of

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= step.rows { return; }
    let run = min(RUN, step.segment);
    let i = id.y * CAPACITY + id.x;
    let first = id.y * CAPACITY + id.x / run * run;
    let key = ordered(keys[i]);
    var place = first;
    for (var j = first; j < first + run; j += 1u) {
        let other = ordered(keys[j]);
        place += select(0u, 1u, other < key || (other == key && j < i));
    }
    sorted[place] = key;
    before[place] = order[i];
}
