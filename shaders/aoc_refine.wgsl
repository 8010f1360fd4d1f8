// A step of the power iteration towards the direction of largest variance: c[p] = sum_i (key[i] - mean) x[i, p] over the rows of a
// segment, key = x . direction, brought to the size of x.
// One workgroup for each (segment, g), one invocation for each 4 coordinates.
override POINTS: u32;    // coordinates
override CAPACITY: u32;  // rows of a head

const P4 = POINTS / 4u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> points: array<vec4<f32>>;           // [G, CAPACITY, P4]
@group(0) @binding(2) var<storage, read> order: array<u32>;                  // [G, CAPACITY]: row at each place
@group(0) @binding(3) var<storage, read> keys: array<f32>;                   // [G, CAPACITY]
@group(0) @binding(4) var<storage, read_write> direction: array<vec4<f32>>;  // [G, CAPACITY, P4]: a row for each segment

@compute @workgroup_size(P4)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) p: u32) {
    let rows = group.y * CAPACITY;
    let first = rows + group.x * step.segment;
    // Measured from the first row, one pass is enough.
    let origin = points[(rows + order[first]) * P4 + p];
    let first_key = keys[first];
    var sum = 0.0;
    var size = 0.0;
    var x_sum = vec4(0.0);
    var products = vec4(0.0);
    for (var i = first; i < first + step.segment; i += 1u) {
        let key = keys[i] - first_key;
        let x = points[(rows + order[i]) * P4 + p] - origin;
        sum += key;
        size += abs(key);
        x_sum += x;
        products = fma(vec4(key), x, products);
    }
    direction[(rows + group.x) * P4 + p] = (products - sum / f32(step.segment) * x_sum) / max(size, 1e-30);
}
