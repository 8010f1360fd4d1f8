// ranks[layer.x + g] = (tr C)^2 / tr C^2, C the covariance of the coordinates of up to SAMPLE rows of a tree: how many directions of equal
// variance would spread the rows as much.
// One workgroup for each g, one invocation for each coordinate.
override POINTS: u32;    // coordinates
override CAPACITY: u32;  // rows of a head
override SAMPLE: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> points: array<f32>;        // [G, CAPACITY, POINTS]
@group(0) @binding(2) var<storage, read_write> ranks: array<f32>;
@group(0) @binding(3) var<uniform> layer: vec4<u32>;

var<workgroup> means: array<f32, POINTS>;
var<workgroup> traces: array<vec2<f32>, POINTS>;

@compute @workgroup_size(POINTS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) p: u32) {
    let n = min(step.rows, SAMPLE);
    let apart = step.rows / n * POINTS;
    let first = group.x * CAPACITY * POINTS;
    var sum = 0.0;
    for (var i = 0u; i < n; i += 1u) { sum += points[first + i * apart + p]; }
    let mean = sum / f32(n);
    means[p] = mean;
    workgroupBarrier();
    var trace = vec2(0.0);
    for (var other = step.zero; other < POINTS; other += 1u) {
        var covariance = 0.0;
        for (var i = 0u; i < n; i += 1u) {
            let row = first + i * apart;
            covariance = fma(points[row + p] - mean, points[row + other] - means[other], covariance);
        }
        covariance /= f32(n);
        trace += vec2(select(0.0, covariance, other == p), covariance * covariance);
    }
    traces[p] = trace;
    workgroupBarrier();
    if p == 0u {
        for (var other = 1u; other < POINTS; other += 1u) { trace += traces[other]; }
        // Rows that are all alike have no direction.
        ranks[layer.x + group.x] = trace.x * trace.x / max(trace.y, 1e-30);
    }
}
