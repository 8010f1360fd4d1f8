// keys[g, i] = x . direction, x the coordinates of the row at place i of its segment: where along the direction the row lies.
// One invocation for each (EACH places, g), which are of one segment.
override POINTS: u32;
override CAPACITY: u32;
override EACH: u32;

const P4 = POINTS / 4u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> points: array<vec4<f32>>;     // [G, CAPACITY, P4]
@group(0) @binding(2) var<storage, read> direction: array<vec4<f32>>;  // [G, CAPACITY, P4]: a row for each segment
@group(0) @binding(3) var<storage, read> order: array<u32>;            // [G, CAPACITY]: row at each place
@group(0) @binding(4) var<storage, read_write> keys: array<f32>;       // [G, CAPACITY]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = EACH * id.x;
    if i >= step.rows { return; }
    let rows = id.y * CAPACITY;
    let along = (rows + i / step.segment) * P4;
    var at: array<u32, EACH>;
    var sums: array<f32, EACH>;
    for (var r = 0u; r < EACH; r += 1u) {
        at[r] = (rows + order[rows + i + r]) * P4;
        sums[r] = 0.0;
    }
    for (var p = step.zero; p < P4; p += 1u) {
        let component = direction[along + p];
        for (var r = 0u; r < EACH; r += 1u) { sums[r] = add_dot(sums[r], points[at[r] + p], component); }
    }
    for (var r = 0u; r < EACH; r += 1u) { keys[rows + i + r] = sums[r]; }
}
