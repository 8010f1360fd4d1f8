// Rows of logits as the sampling of their sequences wants them. Row `to` of a request becomes row `row`, -inf for tokens that are
// not allowed; then each token with an entry gets its bias, loses for each time that it came, and loses
// multiplier * base^(length - allowed_length) where it would go on repeating `length` tokens.
// One workgroup for each request.
override V: u32;
override WORDS: u32;    // of a set: V / 32, rounded up
override ENTRIES: u32;  // of a sequence, at most, with those of its pending tokens

struct Want {
    row: u32,
    to: u32,
    entries: u32,     // where they are in `lists`: (token, bias, times that it came), each token once
    n_entries: u32,
    history: u32,     // where it is in `lists`: entries, the oldest first
    n_history: u32,
    pending: u32,     // where they are in `lists`: tokens that come after those, each an index of `ids`
    n_pending: u32,
    n_counted: u32,   // of them, the last ones, that penalties count
    n_compared: u32,  // of them, the last ones, that are compared with the history
    allowed: u32,     // index of a set; ALL: no set
    breakers: u32,    // index of a set
    repeat: f32,
    frequency: f32,
    presence: f32,
    multiplier: f32,
    base: f32,
    allowed_length: u32,
    most: u32,
    unused: u32,
}

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read_write> logits: array<vec4<f32>>;  // [2 R, V / 4, rounded up]
@group(0) @binding(2) var<storage, read> wants: array<Want>;              // [R], of which some are wanted
@group(0) @binding(3) var<storage, read> lists: array<u32>;
@group(0) @binding(4) var<storage, read> sets: array<u32>;                // [sets, WORDS]: a bit for each token
@group(0) @binding(5) var<storage, read> ids: array<u32>;                 // what earlier steps have drawn
@group(0) @binding(6) var<storage, read_write> repeats: array<atomic<u32>>;  // [R, ENTRIES]: length - allowed_length + 1, or 0

const WG = 64u;
const V4 = (V + 3u) / 4u;
const ALL = 0xffffffffu;
const PENDING = 4u;

var<private> want: Want;
var<workgroup> drawn: array<u32, PENDING>;  // the pending tokens
var<workgroup> codes: array<u32, PENDING>;  // their entries; a token that has none gets the n_entries + i-th
var<workgroup> broken: atomic<u32>;         // tokens up to the last breaker

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    want = wants[group.x];
    let raw = want.row * V4;
    let to = want.to * V4;
    if want.allowed == ALL {
        for (var i = lane; i < V4; i += WG) { logits[to + i] = logits[raw + i]; }
    } else {
        let nothing = vec4(bitcast<f32>(0xff800000u | step.zero));
        for (var i = lane; i < V4; i += WG) {
            let bits = sets[want.allowed * WORDS + i / 8u] >> (4u * (i % 8u));
            logits[to + i] = select(nothing, logits[raw + i], (vec4(bits) & vec4(1u, 2u, 4u, 8u)) != vec4(0u));
        }
    }
    let tokens = want.n_entries + want.n_pending;
    let first = group.x * ENTRIES;
    for (var e = lane; e < tokens; e += WG) { atomicStore(&repeats[first + e], 0u); }
    if lane < want.n_pending {
        drawn[lane] = ids[lists[want.pending + lane]];
        codes[lane] = want.n_entries + lane;
    }
    if lane == 0u { atomicStore(&broken, 0u); }
    storageBarrier();
    workgroupBarrier();
    for (var e = lane; e < want.n_entries; e += WG) {
        for (var p = 0u; p < want.n_pending; p += 1u) {
            if lists[want.entries + 3u * e] == drawn[p] { codes[p] = e; }
        }
    }
    workgroupBarrier();
    // Tokens that are the same have the first one's entry.
    if lane == 0u {
        for (var p = 1u; p < want.n_pending; p += 1u) {
            for (var q = 0u; q < p; q += 1u) {
                if drawn[q] == drawn[p] { codes[p] = codes[q]; }
            }
        }
    }
    workgroupBarrier();

    let n = want.n_history + want.n_compared;
    for (var i = lane; i < n; i += WG) {
        if is_in(want.breakers, token(code(i))) { atomicMax(&broken, i + 1u); }
    }
    workgroupBarrier();
    let unbroken = n - atomicLoad(&broken);
    for (var i = lane + 1u; i < n; i += WG) {
        let most = min(min(i, unbroken), want.allowed_length + want.most);
        var length = 0u;
        while length < most && code(i - 1u - length) == code(n - 1u - length) { length += 1u; }
        let next = code(i);
        if length >= want.allowed_length && !is_in(want.breakers, token(next)) {
            atomicMax(&repeats[first + next], length - want.allowed_length + 1u);
        }
    }
    storageBarrier();
    workgroupBarrier();

    for (var e = lane; e < tokens; e += WG) {
        // One of the same tokens stands for all; a token is none where a logit was no number.
        if e >= want.n_entries && codes[e - want.n_entries] != e { continue; }
        let id = token(e);
        if id >= V { continue; }
        var x = logits[to + id / 4u][id % 4u];
        var count = 0u;
        if e < want.n_entries {
            x += bitcast<f32>(lists[want.entries + 3u * e + 1u]);
            count = lists[want.entries + 3u * e + 2u];
        }
        for (var p = want.n_pending - want.n_counted; p < want.n_pending; p += 1u) { count += select(0u, 1u, codes[p] == e); }
        if count > 0u {
            x = select(x * want.repeat, x / want.repeat, x > 0.0);
            x -= f32(count) * want.frequency + want.presence;
        }
        let repeat = atomicLoad(&repeats[first + e]);
        if repeat > 0u { x -= want.multiplier * power(want.base, repeat - 1u); }
        logits[to + id / 4u][id % 4u] = x;
    }
}

// The entry of the i-th token that repetitions are looked for in.
fn code(i: u32) -> u32 {
    if i < want.n_history { return lists[want.history + i]; }
    return codes[want.n_pending - want.n_compared + i - want.n_history];
}

fn token(e: u32) -> u32 {
    if e < want.n_entries { return lists[want.entries + 3u * e]; }
    return drawn[e - want.n_entries];
}

fn is_in(chosen: u32, id: u32) -> bool {
    return id < V && ((sets[chosen * WORDS + id / 32u] >> (id % 32u)) & 1u) == 1u;
}

// base^n by squares: WGSL's pow errs by 2^-21 of the exponent.
fn power(base: f32, n: u32) -> f32 {
    var result = 1.0;
    var square = base;
    for (var left = n; left > 0u; left >>= 1u) {
        if (left & 1u) == 1u { result *= square; }
        square *= square;
    }
    return result;
}
