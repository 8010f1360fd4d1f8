// A step of the power iteration towards the direction of largest variance: c[p] = sum_i (key[i] - mean) x[i, p] over the rows of a
// segment, key = x . direction, brought to a largest component of 1.
// One workgroup for each (segment, g), one invocation for each coordinate.
override POINTS: u32;    // coordinates
override CAPACITY: u32;  // rows of a head

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> points: array<f32>;           // [G, CAPACITY, POINTS]
@group(0) @binding(2) var<storage, read> before: array<u32>;           // [G, CAPACITY]: row at each place
@group(0) @binding(3) var<storage, read> keys: array<f32>;             // [G, CAPACITY]
@group(0) @binding(4) var<storage, read_write> direction: array<f32>;  // [G, CAPACITY, POINTS]: a row for each segment

var<workgroup> components: array<f32, POINTS>;

@compute @workgroup_size(POINTS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) p: u32) {
    let rows = group.y * CAPACITY;
    let first = rows + group.x * step.segment;
    var sum = 0.0;
    for (var i = first; i < first + step.segment; i += 1u) { sum += keys[i]; }
    let mean = sum / f32(step.segment);
    var component = 0.0;
    for (var i = first; i < first + step.segment; i += 1u) {
        component = fma(keys[i] - mean, points[(rows + before[i]) * POINTS + p], component);
    }
    components[p] = abs(component);
    workgroupBarrier();
    var largest = 0.0;
    for (var other = step.zero; other < POINTS; other += 1u) { largest = max(largest, components[other]); }
    direction[(rows + group.x) * POINTS + p] = component / max(largest, 1e-30);
}
