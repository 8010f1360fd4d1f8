// ids[r] = the sampled token of logits row r. With temperature 0 the first largest logit; else the largest of
// logit / temperature + Gumbel noise (a draw from the softmax) among the logits kept by top-k and top-p.
// One workgroup for each r. The cut-offs are found by bisection over the 32 bits of a logit's ordered form, so that
// no sort is needed: top-k keeps every logit >= the k-th largest, top-p every one >= the largest cut with mass >= p.
override V: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> logits: array<f32>;          // [R, V padded to 4]
@group(0) @binding(2) var<storage, read> sampling: array<vec4<u32>>;  // [R]: temperature, top-p (f32 bits), top-k, noise key
@group(0) @binding(3) var<storage, read_write> ids: array<u32>;       // [R]

const WG = 64u;
const STRIDE = (V + 3u) / 4u * 4u;

var<workgroup> best_values: array<f32, WG>;
var<workgroup> best_ids: array<u32, WG>;
var<workgroup> partials: array<f32, WG>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let r = group.x;
    // Rows beyond n_outputs have no workgroup.
    let row = r * STRIDE;
    let want = sampling[r];
    let temperature = bitcast<f32>(want.x);
    let top_p = bitcast<f32>(want.y);
    let top_k = want.z;

    let top = argmax(lane, row, 0u, 0.0, 0u);
    if temperature == 0.0 {
        if lane == 0u { ids[r] = top; }
        return;
    }
    let largest = logits[row + min(top, V - 1u)];
    var cut = 0u;
    if top_k > 0u && top_k < V {
        for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
            var count = 0.0;
            for (var i = lane; i < V; i += WG) { count += select(0.0, 1.0, ordered(logits[row + i]) >= (cut | bit)); }
            if total(lane, count) >= f32(top_k) { cut |= bit; }
        }
    }
    if top_p < 1.0 {
        let enough = top_p * mass(lane, row, cut, largest, temperature);
        var p_cut = 0u;
        for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
            if mass(lane, row, max(cut, p_cut | bit), largest, temperature) >= enough { p_cut |= bit; }
        }
        cut = max(cut, p_cut);
    }
    let id = argmax(lane, row, min(cut, ordered(largest)), 1.0 / temperature, want.w);
    if lane == 0u { ids[r] = id; }
}

// The first index of the largest logit (0xffffffff: no logit is a number above the lowest), or with `inverse` > 0 of the largest logit * inverse + noise among those >= cut.
fn argmax(lane: u32, row: u32, cut: u32, inverse: f32, key: u32) -> u32 {
    var value = -3.4028234e38;
    var id = 0xffffffffu;
    for (var i = lane; i < V; i += WG) {
        let x = logits[row + i];
        if ordered(x) < max(cut, 1u) { continue; }
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

// sum of exp((x - largest) / temperature) over logits x >= cut
fn mass(lane: u32, row: u32, cut: u32, largest: f32, temperature: f32) -> f32 {
    var sum = 0.0;
    for (var i = lane; i < V; i += WG) {
        let x = logits[row + i];
        if ordered(x) >= max(cut, 1u) { sum += exp((x - largest) / temperature); }
    }
    return total(lane, sum);
}

fn total(lane: u32, x: f32) -> f32 {
    partials[lane] = x;
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < WG; i += 1u) { sum += partials[i]; }
    workgroupBarrier();
    return sum;
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
