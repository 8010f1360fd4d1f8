// The direction along which the rows of a segment differ most: of the coordinates x[i, p] of its rows i, the covariances
// c[p] = sum_i (x[i, b] - mean[b]) (x[i, p] - mean[p]) with the coordinate b of the largest variance, which is one step of the power
// iteration from the best axis, brought to a largest component of 1.
// One workgroup for each (segment, g), one invocation for each coordinate.
override POINTS: u32;    // coordinates
override CAPACITY: u32;  // rows of a head

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> points: array<f32>;            // [G, CAPACITY, POINTS]
@group(0) @binding(2) var<storage, read> order: array<u32>;             // [G, CAPACITY]: row at each place
@group(0) @binding(3) var<storage, read_write> direction: array<f32>;   // [G, CAPACITY, POINTS]: a row for each segment

var<workgroup> means: array<f32, POINTS>;
var<workgroup> variances: array<f32, POINTS>;

@compute @workgroup_size(POINTS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) p: u32) {
    let rows = group.y * CAPACITY;
    let first = rows + group.x * step.segment;
    var sum = 0.0;
    for (var i = first; i < first + step.segment; i += 1u) { sum += points[(rows + order[i]) * POINTS + p]; }
    let mean = sum / f32(step.segment);
    var squares = 0.0;
    for (var i = first; i < first + step.segment; i += 1u) {
        let x = points[(rows + order[i]) * POINTS + p] - mean;
        squares = fma(x, x, squares);
    }
    means[p] = mean;
    variances[p] = squares;
    workgroupBarrier();
    var best = 0u;
    for (var other = step.zero; other < POINTS; other += 1u) {
        if variances[other] > variances[best] { best = other; }
    }
    var covariance = 0.0;
    for (var i = first; i < first + step.segment; i += 1u) {
        let at = (rows + order[i]) * POINTS;
        covariance = fma(points[at + best] - means[best], points[at + p] - mean, covariance);
    }
    // No covariance is larger than the largest variance.
    direction[(rows + group.x) * POINTS + p] = covariance / max(variances[best], 1e-30);
}
