// The part of a run of pages, by 8 invocations of a subgroup. They share a page's scores by keys, and its values by dims: what
// one has loaded or computed, it tells the others. For subgroups of 8 or more.
override TOKENS: u32;  // queries of one invocation: tokens ...

const LANES = 8u;                // of a workgroup
const QUERIES = TOKENS * HEADS;  // ... times heads, token by token
const OWN = QUERIES;             // each invocation has dims of all
const CHUNKS = (D4 + 7u) / 8u;   // 4 dims each of one invocation, 32 apart
const KEYS = PAGE / 8u;          // of a page, of one invocation, neighbours

fn query_of(lane: u32, i: u32) -> u32 {
    return i;
}

fn dims_of(lane: u32, c: u32) -> u32 {
    return 8u * c + lane;
}

// Of heads `head` to before head + HEADS of tokens t to before t + TOKENS of one sequence, those behind `last` as if they were
// `last`, over the pages of entries `first` to before `end`.
fn run_part(t: u32, last: u32, head: u32, first: u32, end: u32, lane: u32) -> Part {
    var o: array<array<vec4<f32>, CHUNKS>, QUERIES>;
    var q: array<array<vec4<f32>, CHUNKS>, QUERIES>;
    var top: array<f32, QUERIES>;
    var sum: array<f32, QUERIES>;
    var position: array<u32, QUERIES>;
    for (var i = 0u; i < QUERIES; i += 1u) {
        let token = min(t + i / HEADS, last);
        position[i] = tokens[token].y;
        top[i] = LOWEST;
        sum[i] = 0.0;
        for (var c = 0u; c < CHUNKS; c += 1u) {
            let dims = 8u * c + lane;
            q[i][c] = select(vec4(0.0), queries[(token * H + head + i % HEADS) * D4 + min(dims, D4 - 1u)] * SCALE, dims < D4);
            o[i][c] = vec4(0.0);
        }
    }
    // Positions of a sequence's tokens rise.
    let first_position = tokens[t].y;
    let last_position = tokens[last].y;
    for (var e = first; e < end; e += 1u) {
        let page = pages[e];
        let seen_by_any = vec2(seen_keys(page.y, first_position).x, seen_keys(page.y, last_position).y);
        if seen_by_any.x >= seen_by_any.y { continue; }
        let kv_head = page.x * G + head / R;

        // Of keys KEYS * lane + k: scales, and scores, then softmax weights.
        var k_scale: array<array<f32, CHUNKS>, KEYS>;
        var v_scale: array<array<f32, CHUNKS>, KEYS>;
        for (var k = 0u; k < KEYS; k += 1u) {
            for (var c = 0u; c < CHUNKS; c += 1u) {
                k_scale[k][c] = key_scale(kv_head, KEYS * lane + k, c);
                v_scale[k][c] = value_scale(kv_head, KEYS * lane + k, c);
            }
        }
        var p: array<array<f32, KEYS>, QUERIES>;
        for (var i = 0u; i < QUERIES; i += 1u) {
            for (var k = 0u; k < KEYS; k += 1u) { p[i][k] = 0.0; }
        }
        for (var d = 0u; d < 8u; d += 1u) {
            for (var c = 0u; c < CHUNKS; c += 1u) {
                var k4: array<vec4<f32>, KEYS>;
                for (var k = 0u; k < KEYS; k += 1u) {
                    k4[k] = key4(kv_head, KEYS * lane + k, min(8u * c + d, D4 - 1u), k_scale[k][c]);
                }
                for (var i = 0u; i < QUERIES; i += 1u) {
                    let q4 = subgroupShuffle(q[i][c], d);
                    for (var k = 0u; k < KEYS; k += 1u) { p[i][k] = add_dot(p[i][k], q4, k4[k]); }
                }
            }
        }
        for (var i = 0u; i < QUERIES; i += 1u) {
            let seen = seen_keys(page.y, position[i]);
            var page_top = LOWEST;
            for (var k = 0u; k < KEYS; k += 1u) {
                if CAP > 0.0 { p[i][k] = softcap(p[i][k], CAP); }
                page_top = max(page_top, select(LOWEST, p[i][k], is_seen(KEYS * lane + k, seen)));
            }
            let new_top = max(top[i], max_of_8(page_top));
            let old_scale = exp(top[i] - new_top);
            top[i] = new_top;
            sum[i] *= old_scale;
            for (var k = 0u; k < KEYS; k += 1u) {
                p[i][k] = select(0.0, exp(p[i][k] - new_top), is_seen(KEYS * lane + k, seen));
                sum[i] += p[i][k];
            }
            for (var c = 0u; c < CHUNKS; c += 1u) { o[i][c] *= old_scale; }
        }

        for (var from_lane = 0u; from_lane < 8u; from_lane += 1u) {
            var v4: array<array<vec4<f32>, CHUNKS>, KEYS>;
            for (var k = 0u; k < KEYS; k += 1u) {
                let j = KEYS * from_lane + k;
                for (var c = 0u; c < CHUNKS; c += 1u) {
                    let scale = subgroupShuffle(v_scale[k][c], from_lane);
                    let v = value4(kv_head, j, min(8u * c + lane, D4 - 1u), scale);
                    // A value that no query sees may be NaN: it is skipped, not multiplied by 0.
                    v4[k][c] = select(vec4(0.0), v, is_seen(j, seen_by_any));
                }
            }
            for (var i = 0u; i < QUERIES; i += 1u) {
                for (var k = 0u; k < KEYS; k += 1u) {
                    let weight = vec4(subgroupShuffle(p[i][k], from_lane));
                    for (var c = 0u; c < CHUNKS; c += 1u) { o[i][c] = fma(weight, v4[k][c], o[i][c]); }
                }
            }
        }
    }
    for (var i = 0u; i < QUERIES; i += 1u) { sum[i] = sum_of_8(sum[i]); }
    return Part(o, top, sum);
}
