// ranks[layer.x + g] = (tr C)^2 / tr C^2, C the covariance of the coordinates of up to SAMPLE rows of a tree: how many directions of equal
// variance would spread the rows as much.
// One workgroup for each g, one invocation for each 4 coordinates.
override POINTS: u32;    // coordinates
override CAPACITY: u32;  // rows of a head
override SAMPLE: u32;

const P4 = POINTS / 4u;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> points: array<vec4<f32>>;  // [G, CAPACITY, P4]
@group(0) @binding(2) var<storage, read_write> ranks: array<f32>;
@group(0) @binding(3) var<uniform> layer: vec4<u32>;

var<workgroup> means: array<vec4<f32>, P4>;
var<workgroup> traces: array<vec2<f32>, P4>;

@compute @workgroup_size(P4)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) p: u32) {
    let n = min(step.rows, SAMPLE);
    let apart = step.rows / n * P4;
    let first = group.x * CAPACITY * P4;
    var sum = vec4(0.0);
    for (var i = 0u; i < n; i += 1u) { sum += points[first + i * apart + p]; }
    let mean = sum / f32(n);
    means[p] = mean;
    workgroupBarrier();
    var trace = vec2(0.0);
    for (var other = step.zero; other < P4; other += 1u) {
        // Row j: of coordinate j of the others with the own four.
        var covariances: mat4x4<f32>;
        for (var j = 0u; j < 4u; j += 1u) { covariances[j] = vec4(0.0); }
        for (var i = 0u; i < n; i += 1u) {
            let own = points[first + i * apart + p] - mean;
            let others = points[first + i * apart + other] - means[other];
            for (var j = 0u; j < 4u; j += 1u) { covariances[j] = fma(vec4(others[j]), own, covariances[j]); }
        }
        for (var j = 0u; j < 4u; j += 1u) {
            let c = covariances[j] / f32(n);
            trace += vec2(select(0.0, c[j], other == p), dot(c, c));
        }
    }
    traces[p] = trace;
    workgroupBarrier();
    if p == 0u {
        for (var other = 1u; other < P4; other += 1u) { trace += traces[other]; }
        // Rows that are all alike have no direction.
        ranks[layer.x + group.x] = trace.x * trace.x / max(trace.y, 1e-30);
    }
}
