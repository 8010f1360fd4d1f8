// Attention of each token to the far past of its sequence, answered from a forest of anchor trees and merged with what attention to
// the near past left. From the nodes at the starting size down, the WIDTH candidates with most of the heads' attention, as their anchors
// estimate it (score + log rows), are expanded and the others answer with their anchors; at the bottom the rows of the leaves
// chosen are read exactly. A head of keys and values without a width reads all rows. Where the best row of a query leads by
// more than GAP, its value alone is the answer (A0).
// Also keeps every STRIDE-th token's queries, from which later trees take their metric.
// One workgroup for each (token, g); the R query heads of g share its candidates.
override D4: u32;  // D / 4
override H: u32;
override G: u32;
override PAGE: u32;
override LEAF: u32;
override LANES: u32;   // invocations
override MOST: u32;    // candidates at once
override SCALE: f32;
override CAP: f32;     // scores become CAP * tanh(score / CAP); 0: they stay
override GAP: f32;
override QUERIES: u32; // kept for each sequence
override STRIDE: u32;
override WIDTHS: u32;  // widths of a sequence, of all layers and heads
override FIRST: u32;   // the first of this layer's

const R = H / G;
const OWN_DIMS = (D4 + LANES - 1u) / LANES;
const LOWEST = -3.4028234e38;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;       // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> far: array<vec4<u32>>;          // [B]: first tree, trees, starting size (0: never a tree), first of its lists;
                                                                         // then trees, largest first: rows, list of rows' pages, of nodes' pages
@group(0) @binding(3) var<storage, read> lists: array<u32>;              // a sequence's widths, pages of kept queries; pages of trees
@group(0) @binding(4) var<storage, read> q: array<vec4<f32>>;            // [T, H, D4]
@group(0) @binding(5) var<storage, read_write> k_pages: array<Kv4>;      // [pages, G, PAGE, D4]
@group(0) @binding(6) var<storage, read_write> v_pages: array<Kv4>;      // [pages, G, PAGE, D4]
@group(0) @binding(7) var<storage, read> near: array<vec4<f32>>;         // [T, H]: (m, l) of the near past
@group(0) @binding(8) var<storage, read_write> o: array<vec4<f32>>;      // [T, H, D4]: its answer, then that of both

var<workgroup> candidates: array<vec2<u32>, MOST>;   // tree, node or row
var<workgroup> bases: array<u32, MOST>;              // where their dims begin
var<workgroup> scores: array<array<f32, R>, MOST>;   // then weights
var<workgroup> ranks: array<u32, MOST>;              // attention as u32 of the same order; 0: expanded
var<workgroup> places: array<u32, MOST>;             // of a candidate in the order of attention
var<workgroup> chosen: array<vec2<u32>, MOST>;
var<workgroup> partial: array<f32, R * LANES>;
var<workgroup> leads: array<Lead, R * LANES>;

// What all invocations know alike: the largest score of each head so far.
var<private> top: array<f32, R>;
// What each sums up: l of its own candidates, o of its own dims. The near past is the first invocation's.
var<private> sum: array<f32, R>;
var<private> out: array<array<vec4<f32>, R>, OWN_DIMS>;
var<private> lead: array<Lead, R>;

// The best score of a row, where its dims begin, and the best of all other scores.
struct Lead {
    score: f32,
    base: u32,
    second: f32,
}

const NO_LEAD = Lead(LOWEST, 0u, LOWEST);

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t = group.x;
    let g = group.y;
    let token = tokens[t];
    let sequence = far[token.w];
    if sequence.z == 0u { return; }
    let width = lists[sequence.w + FIRST + g];
    let query = (t * H + g * R) * D4;
    keep(token.y, sequence.w + WIDTHS, query, g, lane);

    if sequence.y == 0u { return; }

    for (var r = 0u; r < R; r += 1u) {
        let local = near[t * H + g * R + r];
        top[r] = local.x;
        sum[r] = select(0.0, local.y, lane == 0u);
        lead[r] = NO_LEAD;
        for (var i = 0u; i < OWN_DIMS; i += 1u) { out[i][r] = o[query + r * D4 + own_dim(i, lane)] * local.y; }
    }
    let last = sequence.x + sequence.y;
    var n = 0u;  // candidates
    // Rows that a candidate stands for; 0: they are rows themselves, from `row` on of those to read.
    var size = select(sequence.z, 0u, width == 0u);
    var tree = sequence.x;
    var row = 0u;
    var leaves = 0u;
    if size > 0u {
        for (var other = sequence.x; other < last; other += 1u) {
            let nodes = far[other].x / size;
            for (var c = lane; c < nodes && n + c < MOST; c += LANES) { candidates[n + c] = vec2(other, nodes + c); }
            n = min(n + nodes, MOST);
        }
    }
    loop {
        if size == 0u {
            n = min(select(leaves * LEAF, far[tree].x, width == 0u) - row, MOST);
            for (var c = lane; c < n; c += LANES) {
                let leaf = chosen[(row + c) / LEAF];
                let of_leaf = vec2(leaf.x, (leaf.y - far[leaf.x].x / LEAF) * LEAF + (row + c) % LEAF);
                candidates[c] = select(of_leaf, vec2(tree, row + c), width == 0u);
            }
        }
        workgroupBarrier();
        score(n, size, query, g, lane);
        if size > 0u { rank(n, min(n, width), lane); }
        add(n, size == 0u, lane);

        if size == 0u {
            row += n;
            if width == 0u && row == far[tree].x {
                tree += 1u;
                row = 0u;
            }
            if select(row == leaves * LEAF, tree == last, width == 0u) { break; }
        } else if size == LEAF {
            leaves = min(n, width);
            size = 0u;
        } else {
            // The next candidates: children of those expanded, and trees of just that size.
            size /= 2u;
            let children = 2u * min(n, width);
            for (var c = lane; c < children; c += LANES) { candidates[c] = vec2(chosen[c / 2u].x, 2u * chosen[c / 2u].y + c % 2u); }
            n = children;
            for (var other = sequence.x; other < last; other += 1u) {
                if far[other].x == size && n < MOST {
                    if lane == 0u { candidates[n] = vec2(other, 1u); }
                    n += 1u;
                }
            }
        }
    }
    finish(query, t, g, lane);
}

// The dims of an invocation; those beyond the last are the last.
fn own_dim(i: u32, lane: u32) -> u32 {
    return min(lane + i * LANES, D4 - 1u);
}

// Every STRIDE-th query goes to the place of the oldest kept.
fn keep(position: u32, pages: u32, query: u32, g: u32, lane: u32) {
    if position % STRIDE != 0u { return; }
    let i = position / STRIDE % QUERIES;
    let base = slot_base(lists[pages + i / (2u * PAGE)], g, i);
    for (var d = lane; d < D4; d += LANES) {
        let x = kv_pack(q[query + i % R * D4 + d]);
        if i / PAGE % 2u == 1u { v_pages[base + d] = x; } else { k_pages[base + d] = x; }
    }
}

// scores of the n candidates, nodes of `size` rows or, where it is 0, rows; their largest goes to `top`, and what was summed up is
// brought to that.
fn score(n: u32, size: u32, query: u32, g: u32, lane: u32) {
    let log_rows = log(f32(max(size, 1u)));
    var highest: array<f32, R>;
    for (var r = 0u; r < R; r += 1u) { highest[r] = LOWEST; }
    for (var c = lane; c < n; c += LANES) {
        let candidate = candidates[c];
        let pages = select(far[candidate.x].z, far[candidate.x].y, size == 0u);
        let base = slot_base(lists[pages + candidate.y / PAGE], g, candidate.y);
        bases[c] = base;
        ranks[c] = 1u;
        var dots: array<f32, R>;
        for (var r = 0u; r < R; r += 1u) { dots[r] = 0.0; }
        for (var d = step.zero; d < D4; d += 1u) {
            let k = kv_unpack(k_pages[base + d]);
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
        let old = top[r];
        for (var i = step.zero; i < LANES; i += 1u) { top[r] = max(top[r], partial[r * LANES + i]); }
        let scale = exp(old - top[r]);
        sum[r] *= scale;
        for (var i = 0u; i < OWN_DIMS; i += 1u) { out[i][r] *= scale; }
    }
    workgroupBarrier();
}

// The `width` of n candidates with most attention, added up over the heads, go to `chosen`, and have rank 0 then.
fn rank(n: u32, width: u32, lane: u32) {
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
        ranks[c] = ordered(attention);
    }
    workgroupBarrier();
    for (var c = lane; c < n; c += LANES) {
        var place = 0u;
        for (var other = 0u; other < n; other += 1u) {
            place += select(0u, 1u, ranks[other] > ranks[c] || (ranks[other] == ranks[c] && other < c));
        }
        places[c] = place;
        if place < width { chosen[place] = candidates[c]; }
    }
    workgroupBarrier();
    for (var c = lane; c < n; c += LANES) {
        if places[c] < width { ranks[c] = 0u; }
    }
}

// Adds the n candidates that are not expanded to l and o. Rows may lead.
fn add(n: u32, are_rows: bool, lane: u32) {
    for (var c = lane; c < n; c += LANES) {
        for (var r = 0u; r < R; r += 1u) {
            let s = scores[c][r];
            let is_expanded = ranks[c] == 0u;
            let weight = select(exp(s - top[r]), 0.0, is_expanded);
            scores[c][r] = weight;
            sum[r] += weight;
            let is_lead = are_rows && s > lead[r].score;
            lead[r].second = max(lead[r].second, select(select(s, LOWEST, is_expanded), lead[r].score, is_lead));
            lead[r].score = select(lead[r].score, s, is_lead);
            lead[r].base = select(lead[r].base, bases[c], is_lead);
        }
    }
    workgroupBarrier();
    for (var c = 0u; c < n; c += 1u) {
        if ranks[c] != 0u {
            let base = bases[c];
            for (var i = 0u; i < OWN_DIMS; i += 1u) {
                let v = kv_unpack(v_pages[base + own_dim(i, lane)]);
                for (var r = 0u; r < R; r += 1u) { out[i][r] = fma(vec4(scores[c][r]), v, out[i][r]); }
            }
        }
    }
    workgroupBarrier();
}

// o of near and far past together.
fn finish(query: u32, t: u32, g: u32, lane: u32) {
    for (var r = 0u; r < R; r += 1u) {
        partial[r * LANES + lane] = sum[r];
        leads[r * LANES + lane] = lead[r];
    }
    workgroupBarrier();
    for (var r = 0u; r < R; r += 1u) {
        var l = 0.0;
        var first = NO_LEAD;
        for (var i = step.zero; i < LANES; i += 1u) {
            l += partial[r * LANES + i];
            let theirs = leads[r * LANES + i];
            first.second = max(first.second, max(theirs.second, min(theirs.score, first.score)));
            if theirs.score > first.score {
                first.score = theirs.score;
                first.base = theirs.base;
            }
        }
        let is_alone = first.score - first.second > GAP;
        let local = near[t * H + g * R + r];
        let local_weight = local.y * exp(local.x - top[r]);
        let weight = exp(first.score - top[r]);
        for (var i = 0u; i < OWN_DIMS; i += 1u) {
            let at = query + r * D4 + own_dim(i, lane);
            var answer = out[i][r] / l;
            if is_alone {
                let v = kv_unpack(v_pages[first.base + own_dim(i, lane)]);
                answer = (o[at] * local_weight + v * weight) / (local_weight + weight);
            }
            if lane + i * LANES < D4 { o[at] = answer; }
        }
    }
}
