// The direction along which the rows of a segment differ most: of the coordinates x[i, p] of its rows i, the covariances
// c[p] = sum_i (x[i, b] - mean[b]) (x[i, p] - mean[p]) with the coordinate b of the largest variance, which is one step of the power
// iteration from the best axis, brought to a largest component of 1.
// One workgroup for each (segment, g), one invocation for each 4 coordinates.
override POINTS: u32;    // coordinates
override CAPACITY: u32;  // rows of a head

const P4 = POINTS / 4u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> points: array<vec4<f32>>;           // [G, CAPACITY, P4]
@group(0) @binding(2) var<storage, read> order: array<u32>;                  // [G, CAPACITY]: row at each place
@group(0) @binding(3) var<storage, read_write> direction: array<vec4<f32>>;  // [G, CAPACITY, P4]: a row for each segment

var<workgroup> variances: array<vec4<f32>, P4>;

@compute @workgroup_size(P4)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) p: u32) {
    let rows = group.y * CAPACITY;
    let first = rows + group.x * step.segment;
    // Measured from the first row, one pass is enough for mean and variance.
    let origin = points[(rows + order[first]) * P4 + p];
    var sum = vec4(0.0);
    var squares = vec4(0.0);
    for (var i = first; i < first + step.segment; i += 1u) {
        let x = points[(rows + order[i]) * P4 + p] - origin;
        sum += x;
        squares = fma(x, x, squares);
    }
    let mean = sum / f32(step.segment);
    variances[p] = squares - sum * mean;
    workgroupBarrier();
    var best = 0u;
    var largest = variances[0].x;
    for (var other = step.zero; other < POINTS; other += 1u) {
        let variance = variances[other / 4u][other % 4u];
        best = select(best, other, variance > largest);
        largest = max(largest, variance);
    }
    // Where b is measured from does not matter: the other factors add up to 0.
    let of_best = points[(rows + order[first]) * P4 + best / 4u][best % 4u];
    var covariance = vec4(0.0);
    for (var i = first; i < first + step.segment; i += 1u) {
        let at = (rows + order[i]) * P4;
        covariance = fma(vec4(points[at + best / 4u][best % 4u] - of_best), points[at + p] - origin - mean, covariance);
    }
    // No covariance is larger than the largest variance.
    direction[(rows + group.x) * P4 + p] = covariance / max(largest, 1e-30);
}
