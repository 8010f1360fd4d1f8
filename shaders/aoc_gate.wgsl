// errors[FIRST + g * STEP] += (sum |trial - exact|^2, sum |exact|^2, rows that answered alone, answers), over the tokens whose sequence is
// measured and the query heads of g.
// One workgroup for each g.
override D4: u32;  // D / 4
override H: u32;
override G: u32;
override FIRST: u32;
override STEP: u32;
override MEASURED: u32;  // entry of a sequence's lists: 1 where it is measured

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;       // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> far: array<vec4<u32>>;          // [B]: first tree, trees, starting size, first of its lists
@group(0) @binding(3) var<storage, read> lists: array<u32>;
@group(0) @binding(4) var<storage, read> exact: array<vec4<f32>>;        // [T, H, D4]
@group(0) @binding(5) var<storage, read> trial: array<vec4<f32>>;        // [T, H, D4]
@group(0) @binding(6) var<storage, read> near: array<vec4<f32>>;         // [T, H]: m, l, and whether a row of the trial answers alone
@group(0) @binding(7) var<storage, read_write> errors: array<vec4<f32>>;

const LANES = 64u;
const OWN = H / G * D4;  // of a token

var<workgroup> partial: array<vec4<f32>, LANES>;

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let g = group.x;
    var sum = vec4(0.0);
    for (var i = lane; i < step.n_tokens * OWN; i += LANES) {
        let t = i / OWN;
        let sequence = far[tokens[t].w];
        if sequence.z == 0u || lists[sequence.w + MEASURED] == 0u { continue; }
        let at = t * H * D4 + g * OWN + i % OWN;
        let y = exact[at];
        let difference = trial[at] - y;
        let is_first = select(0.0, 1.0, at % D4 == 0u);
        sum += vec4(dot(difference, difference), dot(y, y), is_first * near[at / D4].z, is_first);
    }
    partial[lane] = sum;
    workgroupBarrier();
    if lane == 0u {
        for (var other = 1u; other < LANES; other += 1u) { sum += partial[other]; }
        let at = FIRST + g * STEP;
        errors[at] += sum;
    }
}
