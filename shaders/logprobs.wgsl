// logprobs[r] = log of the sum of exp(logits) of row r, the logit of the token drawn, and where alternatives are wanted the ids and logits
// of the largest, in order, lower ids first where they tie, and no id of the vocabulary where there are no more. Logits that are no numbers are left out.
// One workgroup for each r.
override V: u32;
override MOST: u32;  // alternatives, at most

struct Want {
    temperature: f32,
    top_p: f32,
    top_k: u32,
    key: u32,
    min_p: f32,
    typical_p: f32,
    row: u32,
    wanted: u32,  // 0: nothing, else a number of alternatives + 1
}

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> logits: array<f32>;          // [R, V padded to 4]
@group(0) @binding(2) var<storage, read> sampling: array<Want>;       // [R]
@group(0) @binding(3) var<storage, read> ids: array<u32>;
@group(0) @binding(4) var<storage, read_write> logprobs: array<f32>;  // [R, 2 + 2 MOST padded to 4]

const WG = 64u;
const STRIDE = (V + 3u) / 4u * 4u;
const PITCH = (2u + 2u * MOST + 3u) / 4u * 4u;
const LOWEST = -3.4028234e38;

var<workgroup> values: array<f32, WG>;
var<workgroup> best_ids: array<u32, WG>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let r = group.x;
    let row = r * STRIDE;
    let wanted = sampling[r].wanted;
    if wanted == 0u { return; }

    var mine = best(lane, row, 3.4028234e38, 0u);
    var next = first(lane, mine);
    let largest = next.value;
    var sum = 0.0;
    for (var i = lane; i < V; i += WG) {
        let x = logits[row + i];
        if x > LOWEST { sum += exp(x - largest); }
    }
    values[lane] = sum;
    workgroupBarrier();
    sum = 0.0;
    for (var i = 0u; i < WG; i += 1u) { sum += values[i]; }
    workgroupBarrier();
    if lane == 0u {
        logprobs[r * PITCH] = largest + log(sum);
        logprobs[r * PITCH + 1u] = logits[row + min(ids[step.first_id + r], V - 1u)];
    }
    for (var k = 1u; k < wanted; k += 1u) {
        if lane == 0u {
            logprobs[r * PITCH + 2u * k] = f32(next.id);
            logprobs[r * PITCH + 2u * k + 1u] = next.value;
        }
        if mine.id == next.id { mine = best(lane, row, next.value, next.id + 1u); }
        next = first(lane, mine);
    }
}

struct Best {
    value: f32,
    id: u32,
}

// The first of the largest logits that the lane looks after, among those below `most`, or equal to it from token `from_id` on.
fn best(lane: u32, row: u32, most: f32, from_id: u32) -> Best {
    var best = Best(LOWEST, 0xffffffffu);
    for (var i = lane; i < V; i += WG) {
        let x = logits[row + i];
        if x > best.value && (x < most || (x == most && i >= from_id)) { best = Best(x, i); }
    }
    return best;
}

// The first of the lanes' best.
fn first(lane: u32, mine: Best) -> Best {
    var best = mine;
    values[lane] = best.value;
    best_ids[lane] = best.id;
    workgroupBarrier();
    for (var i = 0u; i < WG; i += 1u) {
        if values[i] > best.value || (values[i] == best.value && best_ids[i] < best.id) { best = Best(values[i], best_ids[i]); }
    }
    workgroupBarrier();
    return best;
}
