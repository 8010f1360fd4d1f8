// ids[step.first_id + r] = the token drawn from the r-th request's row of logits. With temperature 0 the first largest logit; else the
// largest of logit / temperature + Gumbel noise (a draw from the softmax) among the logits kept by top-k, typical-p, top-p and min-p.
// One workgroup for each r. Cuts are found three bits at a time of a key that is ordered as logits, or as how typical they are, so
// that no sort is needed: each is the largest key with enough tokens, or enough of the mass, at or above it.
override V: u32;

struct Want {
    temperature: f32,
    top_p: f32,
    top_k: u32,
    key: u32,           // of the noise
    min_p: f32,
    typical_p: f32,
    row: u32,           // of logits
    alternatives: u32,  // of logprobs
}

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> logits: array<f32>;     // [rows, V padded to 4]
@group(0) @binding(2) var<storage, read> sampling: array<Want>;  // [R]
@group(0) @binding(3) var<storage, read_write> ids: array<u32>;

const WG = 64u;
const STRIDE = (V + 3u) / 4u * 4u;
const CUTS = 7u;
const HELD = 8u;
// Less than any mass of something.
const LEAST = 1.1754944e-38;

var<workgroup> best_values: array<f32, WG>;
var<workgroup> best_ids: array<u32, WG>;
var<workgroup> partials: array<f32, WG * CUTS>;
var<workgroup> totals: array<f32, CUTS>;
var<workgroup> few: array<u32, WG * HELD>;

var<private> row: u32;  // where it begins
var<private> largest: f32;
var<private> temperature: f32;
// What is kept: logits of at least `low` in their ordered form, at most `width` from `mean`.
var<private> low: u32;
var<private> mean: f32;
var<private> width: f32;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    // Rows beyond n_outputs have no workgroup.
    let want = sampling[group.x];
    row = want.row * STRIDE;
    low = 1u;
    width = bitcast<f32>(0x7f800000u | step.zero);
    largest = 0.0;
    temperature = 1.0;
    mean = 0.0;
    let top = argmax(lane, 0.0, 0u);
    if want.temperature == 0.0 {
        if lane == 0u { ids[step.first_id + group.x] = top; }
        return;
    }
    largest = logits[row + min(top, V - 1u)];
    temperature = want.temperature;
    // Top-k, typical-p and top-p, each by the one search that there is to compile.
    for (var part = step.zero; part < 3u; part += 1u) {
        let by_distance = part == 1u;
        let share = select(want.top_p, want.typical_p, by_distance);
        if part == 0u && (want.top_k == 0u || want.top_k >= V) { continue; }
        if part > 0u && share >= 1.0 { continue; }
        let moments = mass(lane);
        if by_distance { mean = moments.y / moments.x; }
        let enough = select(max(share * moments.x, LEAST), f32(want.top_k), part == 0u);
        let cut = largest_cut(lane, part == 0u, by_distance, enough);
        // An infinite logit has no probability, and is drawn.
        if !by_distance { low = max(low, cut); }
        else if largest <= 3.4028234e38 { width = bitcast<f32>(0x7fffffffu - cut); }
    }
    if want.min_p > 0.0 {
        let likeliest = logits[row + min(argmax(lane, 0.0, 0u), V - 1u)];
        low = max(low, ordered(likeliest + temperature * log(want.min_p)));
    }
    let id = argmax(lane, 1.0 / temperature, want.key);
    if lane == 0u { ids[step.first_id + group.x] = id; }
}

fn keeps(x: f32) -> bool {
    return ordered(x) >= low && !(distance_of(x) > width);
}

// Logit over temperature, 0 for the largest.
fn scaled(x: f32) -> f32 {
    return (x - largest) / temperature;
}

fn distance_of(x: f32) -> f32 {
    return abs(scaled(x) - mean);
}

// The first index of the largest kept logit (0xffffffff: none is a number above the lowest), or with `inverse` > 0 of the largest
// logit * inverse + noise.
fn argmax(lane: u32, inverse: f32, key: u32) -> u32 {
    var value = -3.4028234e38;
    var id = 0xffffffffu;
    for (var i = lane; i < V; i += WG) {
        let x = logits[row + i];
        if !keeps(x) { continue; }
        var score = x;
        if inverse > 0.0 { score = fma(x, inverse, gumbel(key, i)); }
        if score > value {
            value = score;
            id = i;
        }
    }
    best_values[lane] = value;
    best_ids[lane] = id;
    workgroupBarrier();
    for (var i = 0u; i < WG; i += 1u) {
        if best_values[i] > value || (best_values[i] == value && best_ids[i] < id) {
            value = best_values[i];
            id = best_ids[i];
        }
    }
    workgroupBarrier();
    return id;
}

// The largest cut such that `enough` kept tokens, where they are `counted`, else enough of their mass, have keys of at least the cut.
// Keys are ordered as logits or, `by_distance`, as how near they are to the mean.
fn largest_cut(lane: u32, counted: bool, by_distance: bool, enough: f32) -> u32 {
    var cut = 0u;
    var bits = 32u;  // of the keys from the cut on that are still in question
    var held = 0u;   // tokens of this lane that are; where they are not too many they are in `few`
    var edges: array<u32, CUTS>;
    for (var turn = 0u; turn < 12u; turn += 1u) {
        // First at 32, 16, … temperatures from the best: nearly all logits are soon below the cut, and each lane remembers its others.
        let shift = bits - min(bits, 3u);
        for (var c = 0u; c < CUTS; c += 1u) {
            let off = exp2(5.0 - f32(c));
            let near = select(ordered(largest - off * temperature), 0x7fffffffu - bitcast<u32>(off), by_distance);
            let room = (0xffffffffu - cut) >> shift;
            edges[c] = select(select(0xffffffffu, cut + ((c + 1u) << shift), c < room), near, turn == 0u);
        }
        var sums: array<f32, CUTS>;
        for (var c = 0u; c < CUTS; c += 1u) { sums[c] = 0.0; }
        let all = turn == 0u || held > HELD;
        let end = select(select(held, (V + WG - 1u - lane) / WG, all), 0u, bits == 0u);
        for (var n = 0u; n < end; n += 1u) {
            let x = logits[row + select(few[lane * HELD + min(n, HELD - 1u)], lane + n * WG, all)];
            let key = key_of(x, by_distance);
            if key < edges[0] || !keeps(x) { continue; }
            var amount = 1.0;
            if !counted { amount = exp(scaled(x)); }
            for (var c = 0u; c < CUTS; c += 1u) { sums[c] += select(0.0, amount, key >= edges[c]); }
        }
        for (var c = 0u; c < CUTS; c += 1u) { partials[lane * CUTS + c] = sums[c]; }
        sum_up(lane);
        var above = select(ordered(largest) + 1u, 0x80000000u, by_distance);
        var taken = 0u;
        for (var c = 0u; c < CUTS; c += 1u) {
            if totals[c] >= enough {
                cut = edges[c];
                taken += 1u;
            } else if c == taken {
                above = edges[c];
            }
        }
        bits = select(shift, 32u - countLeadingZeros(above - cut - 1u), turn == 0u);
        if all && turn < 4u {
            held = 0u;
            for (var i = lane; i < V; i += WG) {
                let x = logits[row + i];
                if key_of(x, by_distance) < cut || !keeps(x) { continue; }
                if held < HELD { few[lane * HELD + held] = i; }
                held += 1u;
            }
        }
    }
    return cut;
}

fn key_of(x: f32, by_distance: bool) -> u32 {
    return select(ordered(x), 0x7fffffffu - bitcast<u32>(distance_of(x)), by_distance);
}

// What is kept: the sum of exp(scaled logit), and of that times the scaled logit.
fn mass(lane: u32) -> vec2<f32> {
    var sum = vec2(0.0);
    for (var i = lane; i < V; i += WG) {
        let x = logits[row + i];
        // exp(-inf) is 0, but its product with -inf is no number.
        if keeps(x) && scaled(x) >= -1e4 { sum += exp(scaled(x)) * vec2(1.0, scaled(x)); }
    }
    partials[lane * CUTS] = sum.x;
    partials[lane * CUTS + 1u] = sum.y;
    sum_up(lane);
    return vec2(totals[0], totals[1]);
}

// totals[c] = the sum of all partials of c
fn sum_up(lane: u32) {
    workgroupBarrier();
    if lane < CUTS {
        var sum = 0.0;
        for (var i = 0u; i < WG; i += 1u) { sum += partials[i * CUTS + lane]; }
        totals[lane] = sum;
    }
    workgroupBarrier();
}

// A u32 that is ordered as the float is; 0, below every number, when it is none.
fn ordered(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    if (bits & 0x7fffffffu) > 0x7f800000u { return 0u; }
    return select(bits | 0x80000000u, ~bits, bits >> 31u == 1u);
}

// -log(-log(u)), u uniform in (0, 1) from a hash of (key, i): the same on every device.
fn gumbel(key: u32, i: u32) -> f32 {
    // WGSL's log may err by 2^-21 near 1, where the largest noise comes from: there -log(1 - v) is a series in v.
    let bits = hash(key ^ hash(i)) >> 9u;
    let v = (f32(~bits & 0x7fffffu) + 0.5) / 8388608.0;
    let series = v * (1.0 + v * (0.5 + v * (0.33333334 + v * (0.25 + v * 0.2))));
    return -log(select(-log(1.0 - v), series, v < 0.03125));
}

// PCG-RXS-M-XS (O'Neill 2014)
fn hash(x: u32) -> u32 {
    let state = x * 747796405u + 2891336453u;
    let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
    return (word >> 22u) ^ word;
}
