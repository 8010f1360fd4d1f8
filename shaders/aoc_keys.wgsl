// keys[g, i] = x . direction, x the coordinates of the row at place i of its segment: where along the direction the row lies. `before`
// keeps the order of the rows, which aoc_order changes.
// One invocation for each (place i, g).
override POINTS: u32;
override CAPACITY: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> points: array<vec4<f32>>;     // [G, CAPACITY, POINTS / 4]
@group(0) @binding(2) var<storage, read> direction: array<vec4<f32>>;  // [G, CAPACITY, POINTS / 4]: a row for each segment
@group(0) @binding(3) var<storage, read> order: array<u32>;            // [G, CAPACITY]
@group(0) @binding(4) var<storage, read_write> keys: array<f32>;       // [G, CAPACITY]
@group(0) @binding(5) var<storage, read_write> before: array<u32>;     // [G, CAPACITY]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x;
    if i >= step.rows { return; }
    let rows = id.y * CAPACITY;
    let x = (rows + order[rows + i]) * (POINTS / 4u);
    let along = (rows + i / step.segment) * (POINTS / 4u);
    var sum = 0.0;
    for (var p = step.zero; p < POINTS / 4u; p += 1u) { sum = add_dot(sum, points[x + p], direction[along + p]); }
    keys[rows + i] = sum;
    before[rows + i] = order[rows + i];
}
