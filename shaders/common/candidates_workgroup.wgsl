// The candidates of a lookup, by a workgroup: what one invocation has computed, others read behind a barrier.
override LANES: u32;  // invocations

var<workgroup> candidates: array<vec2<u32>, MOST>;   // tree, node or row
var<workgroup> bases: array<u32, MOST>;              // their rows
var<workgroup> scores: array<array<f32, R>, MOST>;   // then weights
var<workgroup> ranks: array<i32, MOST>;              // attention as i32 of the same order
var<workgroup> places: array<u32, MOST>;             // in the order of attention
var<workgroup> chosen: array<vec2<u32>, MOST>;
var<workgroup> partial: array<f32, R * LANES>;
var<workgroup> leads: array<Lead, R * LANES>;

fn chosen_at(place: u32) -> vec2<u32> {
    return chosen[place];
}

// Nothing of it: each loads q as it needs it.
fn hold_q(lane: u32) {}

fn score(at: Depth, g: u32, lane: u32) {
    let log_rows = log(f32(max(at.size, 1u)));
    var highest: array<f32, R>;
    for (var r = 0u; r < R; r += 1u) { highest[r] = LOWEST; }
    for (var c = lane; c < at.n; c += LANES) {
        let candidate = candidate_at(at, c);
        let base = base_of(at, candidate, g);
        candidates[c] = candidate;
        bases[c] = base;
        var dots: array<f32, R>;
        for (var r = 0u; r < R; r += 1u) { dots[r] = 0.0; }
        for (var d = step.zero; d < D4; d += 1u) {
            let k = key_of(base, d);
            for (var r = 0u; r < R; r += 1u) { dots[r] = add_dot(dots[r], q[query + r * D4 + d] * SCALE, k); }
        }
        for (var r = 0u; r < R; r += 1u) {
            let s = select(dots[r], softcap(dots[r], max(CAP, 1.0)), CAP > 0.0) + log_rows;
            scores[c][r] = s;
            highest[r] = max(highest[r], s);
        }
    }
    for (var r = 0u; r < R; r += 1u) { partial[r * LANES + lane] = highest[r]; }
    workgroupBarrier();
    for (var r = 0u; r < R; r += 1u) {
        for (var i = step.zero; i < LANES; i += 1u) { highest[r] = max(highest[r], partial[r * LANES + i]); }
        raise(r, highest[r]);
    }
    workgroupBarrier();
}

fn rank(n: u32, expanded: u32, lane: u32) {
    for (var r = 0u; r < R; r += 1u) {
        var own = 0.0;
        for (var c = lane; c < n; c += LANES) { own += exp(scores[c][r] - top[r]); }
        partial[r * LANES + lane] = own + sum[r];
    }
    workgroupBarrier();
    var all: array<f32, R>;
    for (var r = 0u; r < R; r += 1u) {
        all[r] = 0.0;
        for (var i = step.zero; i < LANES; i += 1u) { all[r] += partial[r * LANES + i]; }
    }
    for (var c = lane; c < n; c += LANES) {
        var attention = 0.0;
        for (var r = 0u; r < R; r += 1u) { attention += exp(scores[c][r] - top[r]) / all[r]; }
        ranks[c] = bitcast<i32>(attention);
    }
    workgroupBarrier();
    for (var c = lane; c < n; c += LANES) {
        var place = 0u;
        for (var other = 0u; other < n; other += 1u) {
            place += select(0u, 1u, ranks[other] > ranks[c] || (ranks[other] == ranks[c] && other < c));
        }
        places[c] = place;
        if place < expanded { chosen[place] = candidates[c]; }
    }
    workgroupBarrier();
}

fn add(n: u32, expanded: u32, lane: u32) {
    for (var c = lane; c < n; c += LANES) {
        for (var r = 0u; r < R; r += 1u) {
            let s = scores[c][r];
            let answers = places[c] >= expanded;
            let weight = select(0.0, exp(s - top[r]), answers);
            scores[c][r] = weight;
            sum[r] += weight;
            follow(r, select(LOWEST, s, answers), bases[c], expanded == 0u);
        }
    }
    workgroupBarrier();
    for (var c = 0u; c < n; c += 1u) {
        if places[c] >= expanded {
            let base = bases[c];
            for (var i = 0u; i < OWN_DIMS; i += 1u) {
                let v = value_of(base, own_dim(i, lane));
                for (var r = 0u; r < R; r += 1u) { out[i][r] = fma(vec4(scores[c][r]), v, out[i][r]); }
            }
        }
    }
    workgroupBarrier();
}

fn total(lane: u32) {
    for (var r = 0u; r < R; r += 1u) {
        partial[r * LANES + lane] = sum[r];
        leads[r * LANES + lane] = lead[r];
    }
    workgroupBarrier();
    for (var r = 0u; r < R; r += 1u) {
        sum[r] = 0.0;
        for (var i = step.zero; i < LANES; i += 1u) {
            sum[r] += partial[r * LANES + i];
            let other = leads[r * LANES + i];
            if i != lane { merge(r, other.score, other.base, other.second); }
        }
    }
}
