// The candidates of one depth, by 8 invocations of a subgroup: candidate c is number c / 8 of invocation c % 8, and what one has it
// tells the others, without a barrier. For subgroups of 8 or more.
const LANES = 8u;
const OWN = MOST / LANES;  // of one invocation
const PAIR = 2u;           // taken together, which share what is told of q and o
const LAST = i32(-2147483648);

var<private> candidates: array<vec2<u32>, OWN>;  // tree, node or row
var<private> bases: array<u32, OWN>;             // their rows
var<private> scores: array<array<f32, R>, OWN>;
var<private> ranks: array<i32, OWN>;             // attention as i32 of the same order
var<private> places: array<u32, OWN>;            // in the order of attention
var<private> chosen: array<vec2<u32>, OWN>;      // place p is number p / 8 of invocation p % 8
var<private> own_q: array<array<vec4<f32>, R>, OWN_DIMS>;

// For all invocations at once, whose places are of one number.
fn chosen_at(place: u32) -> vec2<u32> {
    return subgroupShuffle(chosen[place / LANES], place % LANES);
}

fn hold_q(lane: u32) {
    for (var n = step.zero; n < R * OWN_DIMS; n += 1u) {
        let r = n / OWN_DIMS;
        let i = n % OWN_DIMS;
        own_q[i][r] = select(vec4(0.0), q[query + r * D4 + own_dim(i, lane)] * SCALE, lane + i * LANES < D4);
    }
}

fn score(at: Depth, g: u32, lane: u32) {
    let own = (at.n + LANES - 1u) / LANES;
    for (var i = 0u; i < own; i += 1u) {
        // Those beyond the last are the last.
        let candidate = candidate_at(at, min(i * LANES + lane, at.n - 1u));
        candidates[i] = candidate;
        bases[i] = base_of(at, candidate, g);
    }
    let log_rows = log(f32(max(at.size, 1u)));
    var highest: array<f32, R>;
    for (var r = 0u; r < R; r += 1u) { highest[r] = LOWEST; }
    for (var i = 0u; i < own; i += PAIR) {
        var base: array<u32, PAIR>;
        var scale: array<array<f32, OWN_DIMS>, PAIR>;
        var dots: array<array<f32, R>, PAIR>;
        for (var j = 0u; j < PAIR; j += 1u) {
            base[j] = bases[min(i + j, own - 1u)];
            for (var c = 0u; c < OWN_DIMS; c += 1u) { scale[j][c] = key_scale(base[j] / PAGE, base[j] % PAGE, c); }
            for (var r = 0u; r < R; r += 1u) { dots[j][r] = 0.0; }
        }
        for (var d = step.zero; d < LANES; d += 1u) {
            for (var c = 0u; c < OWN_DIMS; c += 1u) {
                var k: array<vec4<f32>, PAIR>;
                for (var j = 0u; j < PAIR; j += 1u) {
                    k[j] = key4(base[j] / PAGE, base[j] % PAGE, own_dim(c, d), scale[j][c]);
                }
                for (var r = 0u; r < R; r += 1u) {
                    let q4 = subgroupShuffle(own_q[c][r], d);
                    for (var j = 0u; j < PAIR; j += 1u) { dots[j][r] = add_dot(dots[j][r], q4, k[j]); }
                }
            }
        }
        for (var j = 0u; j < PAIR; j += 1u) {
            for (var r = 0u; r < R; r += 1u) {
                let s = select(dots[j][r], softcap(dots[j][r], max(CAP, 1.0)), CAP > 0.0) + log_rows;
                let own_score = select(LOWEST, s, (i + j) * LANES + lane < at.n);
                scores[i + j][r] = own_score;
                highest[r] = max(highest[r], own_score);
            }
        }
    }
    for (var r = 0u; r < R; r += 1u) { raise(r, max_of_8(highest[r])); }
}

fn rank(n: u32, expanded: u32, lane: u32) {
    let own = (n + LANES - 1u) / LANES;
    var all: array<f32, R>;
    for (var r = 0u; r < R; r += 1u) { all[r] = sum[r]; }
    for (var i = 0u; i < own; i += 1u) {
        for (var r = 0u; r < R; r += 1u) { all[r] += exp(scores[i][r] - top[r]); }
    }
    for (var r = 0u; r < R; r += 1u) { all[r] = 1.0 / sum_of_8(all[r]); }
    for (var i = 0u; i < own; i += 1u) {
        var attention = 0.0;
        for (var r = 0u; r < R; r += 1u) { attention += exp(scores[i][r] - top[r]) * all[r]; }
        ranks[i] = select(LAST, bitcast<i32>(attention), i * LANES + lane < n);
    }
    for (var i = 0u; i < own; i += 1u) {
        let mine = ranks[i];
        var place = 0u;
        // Of equal rank, the first comes first.
        for (var j = 0u; j < i; j += 1u) {
            let other = ranks[j];
            for (var l = 0u; l < LANES; l += 1u) { place += select(0u, 1u, subgroupShuffle(other, l) >= mine); }
        }
        for (var l = 0u; l < LANES; l += 1u) {
            let other = subgroupShuffle(mine, l);
            place += select(0u, 1u, other > mine || (other == mine && l < lane));
        }
        for (var j = i + 1u; j < own; j += 1u) {
            let other = ranks[j];
            for (var l = 0u; l < LANES; l += 1u) { place += select(0u, 1u, subgroupShuffle(other, l) > mine); }
        }
        places[i] = place;
    }
    // Each asks who has its places: handing them over would be stores at indices that vary, which are slow.
    for (var first = 0u; first < expanded; first += LANES) {
        var it = vec2(0u);
        for (var i = 0u; i < own; i += 1u) {
            let place = places[i];
            let candidate = candidates[i];
            for (var l = 0u; l < LANES; l += 1u) {
                let is_here = subgroupShuffle(place, l) == first + lane;
                it = select(it, subgroupShuffle(candidate, l), is_here);
            }
        }
        chosen[first / LANES] = it;
    }
}

fn add(n: u32, expanded: u32, lane: u32) {
    for (var i = 0u; i < (n + LANES - 1u) / LANES; i += 1u) {
        let answers = i * LANES + lane < n && places[i] >= expanded;
        var weight: array<f32, R>;
        for (var r = 0u; r < R; r += 1u) {
            let s = scores[i][r];
            weight[r] = select(0.0, exp(s - top[r]), answers);
            sum[r] += weight[r];
            follow(r, select(LOWEST, s, answers), bases[i], expanded == 0u);
        }
        // Of those with no weight, a row that is at hand.
        let own_base = select(bases[0], bases[i], answers);
        // Each begins with another row, so that they wait for memory together.
        for (var turn = step.zero; turn < LANES; turn += PAIR) {
            var v4: array<array<vec4<f32>, OWN_DIMS>, PAIR>;
            for (var k = 0u; k < PAIR; k += 1u) {
                let base = subgroupShuffle(own_base, (lane + turn + k) % LANES);
                for (var d = 0u; d < OWN_DIMS; d += 1u) { v4[k][d] = value_of(base, own_dim(d, lane)); }
            }
            for (var r = 0u; r < R; r += 1u) {
                for (var k = 0u; k < PAIR; k += 1u) {
                    let w = vec4(subgroupShuffle(weight[r], (lane + turn + k) % LANES));
                    for (var d = 0u; d < OWN_DIMS; d += 1u) { out[d][r] = fma(w, v4[k][d], out[d][r]); }
                }
            }
        }
    }
}

fn total(lane: u32) {
    for (var r = 0u; r < R; r += 1u) {
        sum[r] = sum_of_8(sum[r]);
        for (var apart = 1u; apart < LANES; apart *= 2u) {
            let score = subgroupShuffleXor(lead[r].score, apart);
            let base = subgroupShuffleXor(lead[r].base, apart);
            merge(r, score, base, subgroupShuffleXor(lead[r].second, apart));
        }
    }
}
