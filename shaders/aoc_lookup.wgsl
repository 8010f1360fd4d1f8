// Attention of each token to the far past of its sequence, answered from a forest of anchor trees and merged with what attention to
// the near past left. From the nodes at the starting size down, the WIDTH candidates with most of the heads' attention, as their anchors
// estimate it (score + log rows), are expanded and the others answer with their anchors; at the bottom the rows of the leaves
// chosen are read exactly. A head of keys and values without a width reads all rows. Where the best row of a query leads by
// more than GAP, its value alone is the answer (A0).
// Also keeps queries, from which later trees take their metric, and with which widths are tried.
// One workgroup for each (token, g); the R query heads of g share its candidates.
override D4: u32;  // D / 4
override H: u32;
override G: u32;
override PAGE: u32;
override LEAF: u32;
override MOST: u32;    // candidates at once
override SCALE: f32;
override CAP: f32;     // scores become CAP * tanh(score / CAP); 0: they stay
override GAP: f32;
override WIDTHS: u32;  // widths of a sequence, of all layers and heads

const R = H / G;
const OWN_DIMS = (D4 + LANES - 1u) / LANES;
const LOWEST = -3.4028234e38;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;       // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> far: array<vec4<u32>>;          // [B]: first tree, trees, starting size (0: never a tree), first of its lists;
                                                                         // then trees, largest first: rows, list of rows' pages, of nodes' pages
@group(0) @binding(3) var<storage, read> lists: array<u32>;              // a sequence's widths, pages of kept queries; pages of trees
@group(0) @binding(4) var<storage, read> q: array<vec4<f32>>;            // [T, H, D4]
@group(0) @binding(5) var<storage, read_write> k_pages: array<Kv>;       // [pages, G, PAGE, D4]
@group(0) @binding(6) var<storage, read_write> v_pages: array<Kv>;       // [pages, G, PAGE, D4]
@group(0) @binding(7) var<storage, read_write> near: array<f32>;         // [T, H, 4]: (m, l) of the near past, then whether a row answers alone
@group(0) @binding(8) var<storage, read_write> o: array<vec4<f32>>;      // [T, H, D4]: its answer, then that of both
@group(0) @binding(9) var<uniform> layer: vec4<u32>;                     // x: the layer's first width

// What all invocations know alike: where the first head's q begins, and the largest score of each head so far.
var<private> query: u32;
var<private> top: array<f32, R>;
// What each sums up: l of its own candidates, o of its own dims. l of the near past is the first invocation's.
var<private> sum: array<f32, R>;
var<private> out: array<array<vec4<f32>, R>, OWN_DIMS>;
var<private> lead: array<Lead, R>;

// The best score of a row, which it is, and the best of all other scores.
struct Lead {
    score: f32,
    base: u32,
    second: f32,
}

// What the n candidates are: nodes of `size` rows, `children` of those of the nodes chosen, then those of the trees from `tree` on
// that enter here. Where size is 0, rows from `row` on, of the tree or, where there are any, of the `children` in the leaves chosen.
struct Depth {
    size: u32,
    n: u32,
    children: u32,
    tree: u32,
    row: u32,
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let t = group.x;
    let g = group.y;
    let token = tokens[t];
    let sequence = far[token.w];
    if sequence.z == 0u { return; }
    let width = lists[sequence.w + layer.x + g];
    query = (t * H + g * R) * D4;
    keep(token.y, sequence.w + WIDTHS, g, lane);

    if sequence.y == 0u { return; }

    for (var r = 0u; r < R; r += 1u) {
        lead[r] = Lead(LOWEST, 0u, LOWEST);
        for (var i = 0u; i < OWN_DIMS; i += 1u) { out[i][r] = vec4(0.0); }
    }
    for (var r = step.zero; r < R; r += 1u) {
        let local = 4u * (t * H + g * R + r);
        top[r] = near[local];
        sum[r] = select(0.0, near[local + 1u], lane == 0u);
    }
    hold_q(lane);
    let end = sequence.x + sequence.y;
    var at = Depth(select(sequence.z, 0u, width == 0u), 0u, 0u, sequence.x, 0u);
    if width > 0u {
        for (var tree = sequence.x; tree < end; tree += 1u) { at.n = min(at.n + far[tree].x / at.size, MOST); }
    }
    loop {
        if at.size == 0u {
            let rows = select(at.children, far[at.tree].x, width == 0u);
            at.n = min(rows - at.row, MOST);
        }
        score(at, g, lane);
        let expanded = select(min(at.n, width), 0u, at.size == 0u);
        if at.size > 0u { rank(at.n, expanded, lane); }
        add(at.n, expanded, lane);

        if at.size == 0u {
            at.row += at.n;
            if width == 0u && at.row == far[at.tree].x {
                at.tree += 1u;
                at.row = 0u;
            }
            if select(at.row == at.children, at.tree == end, width == 0u) { break; }
        } else if at.size == LEAF {
            at = Depth(0u, 0u, expanded * LEAF, 0u, 0u);
        } else {
            at.size /= 2u;
            at.children = 2u * expanded;
            at.n = at.children;
            for (var tree = end; tree > sequence.x; tree -= 1u) {
                if far[tree - 1u].x == at.size {
                    at.tree = tree - 1u;
                    at.n = min(at.n + 1u, MOST);
                }
            }
        }
    }
    finish(t * H + g * R, lane);
}

// Tree and node, or row, of candidate c.
fn candidate_at(at: Depth, c: u32) -> vec2<u32> {
    if at.size == 0u {
        if at.children == 0u { return vec2(at.tree, at.row + c); }
        let leaf = chosen_at((at.row + c) / LEAF);
        return vec2(leaf.x, (leaf.y - far[leaf.x].x / LEAF) * LEAF + (at.row + c) % LEAF);
    }
    let parent = chosen_at(c / 2u);
    var candidate = vec2(parent.x, 2u * parent.y + c % 2u);
    var i = c - at.children;
    var tree = at.tree;
    for (var is_met = c < at.children; !is_met; tree += 1u) {
        let nodes = far[tree].x / at.size;
        is_met = i < nodes;
        candidate = vec2(tree, nodes + i);
        i -= nodes;
    }
    return candidate;
}

// The row of a candidate.
fn base_of(at: Depth, candidate: vec2<u32>, g: u32) -> u32 {
    let pages = far[candidate.x][select(2u, 1u, at.size == 0u)];
    return row_at(lists[pages + candidate.y / PAGE], g, candidate.y);
}

// The dims of an invocation; those beyond the last are the last.
fn own_dim(i: u32, lane: u32) -> u32 {
    return min(lane + i * LANES, D4 - 1u);
}

// Queries that are kept go to the places of the oldest.
fn keep(position: u32, pages: u32, g: u32, lane: u32) {
    if !is_kept(position) { return; }
    let turn = turn_of(position);
    let of_trials = is_of_trials(position);
    for (var n = lane; n < select(1u, R, of_trials) * PIECES; n += LANES) {
        let piece = n % PIECES;
        let r = select(turn % R, n / PIECES, of_trials);
        let item = select(turn, OF_TRIALS + turn * R + r, of_trials);
        var x: array<vec4<f32>, 16>;
        for (var d = step.zero; d < 16u; d += 1u) {
            let dims = 16u * piece + d;
            x[d] = select(vec4(0.0), q[query + r * D4 + min(dims, D4 - 1u)], dims < D4);
        }
        put(item / PAGE % 2u == 1u, row_at(lists[pages + item / (2u * PAGE)], g, item), piece, &x);
    }
}

// Of head r, the largest score so far becomes at least `highest`, and what was summed up is brought to that.
fn raise(r: u32, highest: f32) {
    let old = top[r];
    top[r] = max(old, highest);
    let scale = exp(old - top[r]);
    sum[r] *= scale;
    for (var i = 0u; i < OWN_DIMS; i += 1u) { out[i][r] *= scale; }
}

// The lead of head r after another score, of a row or not.
fn follow(r: u32, score: f32, base: u32, is_row: bool) {
    let is_lead = is_row && score > lead[r].score;
    lead[r].second = max(lead[r].second, select(score, lead[r].score, is_lead));
    lead[r].score = select(lead[r].score, score, is_lead);
    lead[r].base = select(lead[r].base, base, is_lead);
}

// The lead of head r, and of another's scores.
fn merge(r: u32, score: f32, base: u32, second: f32) {
    lead[r].second = max(lead[r].second, max(second, min(score, lead[r].score)));
    lead[r].base = select(lead[r].base, base, score > lead[r].score);
    lead[r].score = max(lead[r].score, score);
}

// o of near and far past together.
fn finish(first_head: u32, lane: u32) {
    total(lane);
    for (var n = step.zero; n < R * OWN_DIMS; n += 1u) {
        let r = n / OWN_DIMS;
        let dim = lane + n % OWN_DIMS * LANES;
        // A loop that is left early stays a loop.
        if dim >= D4 { continue; }
        let local = 4u * (first_head + r);
        let local_weight = near[local + 1u] * exp(near[local] - top[r]);
        let best = lead[r];
        let is_alone = best.score - best.second > GAP;
        if dim == 0u { near[local + 2u] = select(0.0, 1.0, is_alone); }
        var l = sum[r];
        var of_far = out[n % OWN_DIMS][r];
        if is_alone {
            let weight = exp(best.score - top[r]);
            l = local_weight + weight;
            of_far = weight * value_of(best.base, dim);
        }
        let at = query + r * D4 + dim;
        o[at] = (local_weight * o[at] + of_far) / l;
    }
}
