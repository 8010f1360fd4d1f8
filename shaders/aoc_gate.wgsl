// errors[(layer.x + g) * TRIALS + TRIAL] += (sum |trial - exact|^2 / |exact|^2, rows that answered alone, answers, 0), over the tokens
// and the query heads of g.
// One workgroup for each g.
override D4: u32;  // D / 4
override H: u32;
override G: u32;
override TRIALS: u32;
override TRIAL: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> exact: array<vec4<f32>>;        // [T, H, D4]
@group(0) @binding(2) var<storage, read> trial: array<vec4<f32>>;        // [T, H, D4]
@group(0) @binding(3) var<storage, read> near: array<vec4<f32>>;         // [T, H]: m, l, and whether a row of the trial answers alone
@group(0) @binding(4) var<storage, read_write> errors: array<vec4<f32>>;
@group(0) @binding(5) var<uniform> layer: vec4<u32>;

const LANES = 64u;
const R = H / G;

var<workgroup> partial: array<vec4<f32>, LANES>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let g = group.x;
    var sum = vec4(0.0);
    for (var i = lane; i < step.n_tokens * R; i += LANES) {
        let t = i / R;
        let answer = t * H + g * R + i % R;
        var error = 0.0;
        var norm = 0.0;
        for (var d = step.zero; d < D4; d += 1u) {
            let y = exact[answer * D4 + d];
            let difference = trial[answer * D4 + d] - y;
            error += dot(difference, difference);
            norm += dot(y, y);
        }
        sum += vec4(error / max(norm, 1e-30), near[answer].z, 1.0, 0.0);
    }
    partial[lane] = sum;
    workgroupBarrier();
    if lane == 0u {
        for (var other = 1u; other < LANES; other += 1u) { sum += partial[other]; }
        errors[(layer.x + g) * TRIALS + TRIAL] += sum;
    }
}
