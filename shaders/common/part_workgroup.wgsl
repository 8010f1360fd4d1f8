// The part of a run of pages, by a workgroup: each invocation scores some of the keys, and adds up some of the values' dims.
override TOKENS: u32;  // queries of a workgroup: tokens ...
override LANES: u32;   // invocations of a workgroup, at least one for each page of a run

const QUERIES = TOKENS * HEADS;  // ... times heads, token by token
const SPAN = RUN * PAGE;         // keys of a run
const KEYS = SPAN / LANES;       // of one invocation, neighbours in a page

const WIDTH = min(LANES, D4);               // invocations that share the dims of a query
const SETS = LANES / WIDTH;                 // of those: set n has the queries n, n + SETS, ...
const OWN = (QUERIES + SETS - 1u) / SETS;   // queries of one set
const CHUNKS = (D4 + WIDTH - 1u) / WIDTH;   // 4 dims each of one invocation, 4 WIDTH apart

var<workgroup> tops: array<f32, QUERIES * LANES>;    // [QUERIES, LANES]: the largest scores
var<workgroup> weights: array<f32, QUERIES * SPAN>;  // [QUERIES, SPAN]

fn query_of(lane: u32, i: u32) -> u32 {
    return select(QUERIES, lane / WIDTH + SETS * i, lane < SETS * WIDTH);
}

fn dims_of(lane: u32, c: u32) -> u32 {
    return WIDTH * c + lane % WIDTH;
}

fn run_part(t: u32, last: u32, head: u32, first: u32, end: u32, lane: u32) -> Part {
    // Positions of a sequence's tokens rise.
    let first_position = tokens[t].y;
    let last_position = tokens[last].y;

    // Scores of the keys j + k of an entry's page.
    let entry = first + KEYS * lane / PAGE;
    let j = KEYS * lane % PAGE;
    var s: array<array<f32, KEYS>, QUERIES>;
    var seen: array<vec2<u32>, QUERIES>;
    for (var i = 0u; i < QUERIES; i += 1u) {
        seen[i] = vec2(0u);
        for (var k = 0u; k < KEYS; k += 1u) { s[i][k] = 0.0; }
    }
    // A loop of one round or none: a CPU driver leaves it when no lane has a page.
    for (var e = entry; e < end; e += RUN) {
        let page = pages[e];
        for (var i = 0u; i < QUERIES; i += 1u) { seen[i] = seen_keys(page.y, tokens[min(t + i / HEADS, last)].y); }
        if seen_keys(page.y, first_position).x >= seen_keys(page.y, last_position).y { continue; }
        let kv_head = page.x * G + head / R;
        for (var block = 0u; block < (D4 + 7u) / 8u; block += 1u) {
            var scale: array<f32, KEYS>;
            for (var k = 0u; k < KEYS; k += 1u) { scale[k] = key_scale(kv_head, j + k, block); }
            for (var d = 8u * block; d < min(8u * block + 8u, D4); d += 1u) {
                var q4: array<vec4<f32>, QUERIES>;
                for (var i = 0u; i < QUERIES; i += 1u) {
                    q4[i] = queries[(min(t + i / HEADS, last) * H + head + i % HEADS) * D4 + d] * SCALE;
                }
                for (var k = 0u; k < KEYS; k += 1u) {
                    let k4 = key4(kv_head, j + k, d, scale[k]);
                    for (var i = 0u; i < QUERIES; i += 1u) { s[i][k] = add_dot(s[i][k], q4[i], k4); }
                }
            }
        }
    }
    for (var i = 0u; i < QUERIES; i += 1u) {
        var top = LOWEST;
        for (var k = 0u; k < KEYS; k += 1u) {
            if CAP > 0.0 { s[i][k] = softcap(s[i][k], CAP); }
            top = max(top, select(LOWEST, s[i][k], is_seen(j + k, seen[i])));
        }
        tops[i * LANES + lane] = top;
    }
    workgroupBarrier();
    var part: Part;
    for (var i = 0u; i < OWN; i += 1u) { part.top[i] = top_of(min(query_of(lane, i), QUERIES - 1u)); }
    for (var i = 0u; i < QUERIES; i += 1u) {
        let top = top_of(i);
        for (var k = 0u; k < KEYS; k += 1u) {
            weights[i * SPAN + KEYS * lane + k] = select(0.0, exp(s[i][k] - top), is_seen(j + k, seen[i]));
        }
    }
    workgroupBarrier();

    var o: array<array<vec4<f32>, CHUNKS>, OWN>;
    var sum: array<f32, OWN>;
    for (var i = 0u; i < OWN; i += 1u) {
        sum[i] = 0.0;
        for (var c = 0u; c < CHUNKS; c += 1u) { o[i][c] = vec4(0.0); }
    }
    for (var e = first; e < end; e += 1u) {
        let page = pages[e];
        let seen_by_any = vec2(seen_keys(page.y, first_position).x, seen_keys(page.y, last_position).y);
        let kv_head = page.x * G + head / R;
        for (var key = seen_by_any.x; key < seen_by_any.y; key += 1u) {
            var v4: array<vec4<f32>, CHUNKS>;
            for (var c = 0u; c < CHUNKS; c += 1u) {
                let dims = min(dims_of(lane, c), D4 - 1u);
                v4[c] = value4(kv_head, key, dims, value_scale(kv_head, key, dims / 8u));
            }
            for (var i = 0u; i < OWN; i += 1u) {
                let weight = weights[min(query_of(lane, i), QUERIES - 1u) * SPAN + (e - first) * PAGE + key];
                sum[i] += weight;
                for (var c = 0u; c < CHUNKS; c += 1u) { o[i][c] = fma(vec4(weight), v4[c], o[i][c]); }
            }
        }
    }
    part.o = o;
    part.sum = sum;
    return part;
}

fn top_of(query: u32) -> f32 {
    var top = LOWEST;
    for (var n = 0u; n < LANES; n += 1u) { top = max(top, tops[query * LANES + n]); }
    return top;
}
