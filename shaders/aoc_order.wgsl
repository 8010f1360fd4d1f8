// Sorts the rows of each segment by their keys: its halves are the segments of the next level. A row's new place is the number of keys
// below its own, of equal ones those before it.
// One invocation for each (place i, g).
override CAPACITY: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> keys: array<f32>;         // [G, CAPACITY]
@group(0) @binding(2) var<storage, read> before: array<u32>;       // [G, CAPACITY]: row at each place
@group(0) @binding(3) var<storage, read_write> order: array<u32>;  // [G, CAPACITY]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= step.rows { return; }
    let rows = id.y * CAPACITY;
    let i = rows + id.x;
    let first = rows + id.x / step.segment * step.segment;
    let key = ordered(keys[i]);
    var place = first;
    for (var j = first; j < first + step.segment; j += 1u) {
        let other = ordered(keys[j]);
        place += select(0u, 1u, other < key || (other == key && j < i));
    }
    order[place] = before[i];
}
