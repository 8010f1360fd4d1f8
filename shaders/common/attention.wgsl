// What attention_prefill and attention_decode share, so that both give the same bits.
// A score below every real one: keys that a query does not see.
const LOWEST = -3.4028234e38;

const R = H / G;  // query heads of a key and value head

// Which keys of a page that begins at position `start` the query at `position` sees: from .x to before .y. All up to its own
// position; with a WINDOW only so many of the last.
fn seen_keys(start: u32, position: u32) -> vec2<u32> {
    let end = position + 1u;
    let first = select(0u, end - WINDOW, WINDOW > 0u && end > WINDOW);
    return vec2(select(0u, min(first - start, PAGE), first > start), select(0u, min(end - start, PAGE), end > start));
}

fn is_seen(j: u32, seen: vec2<u32>) -> bool {
    return j >= seen.x && j < seen.y;
}

// Softmax weights of the PAGE keys at `base` (in Kv4) for HEADS queries at `query` (in vec4): exp(score - top) of the keys
// seen and 0 of others, the largest score seen, and the weights' sum. With a CAP, scores are soft-capped first.
struct Weights {
    p: array<array<f32, PAGE>, HEADS>,
    top: array<f32, HEADS>,
    sum: array<f32, HEADS>,
}

fn weigh(query: u32, base: u32, seen: vec2<u32>) -> Weights {
    var out: Weights;
    for (var r = 0u; r < HEADS; r += 1u) {
        for (var j = 0u; j < PAGE; j += 1u) { out.p[r][j] = 0.0; }
    }
    for (var i = 0u; i < D4; i += 1u) {
        var q4: array<vec4<f32>, HEADS>;
        for (var r = 0u; r < HEADS; r += 1u) { q4[r] = q[query + r * D4 + i] * SCALE; }
        for (var j = 0u; j < PAGE; j += 1u) {
            let k4 = kv_unpack(k_pages[base + j * D4 + i]);
            for (var r = 0u; r < HEADS; r += 1u) { out.p[r][j] = add_dot(out.p[r][j], q4[r], k4); }
        }
    }
    for (var r = 0u; r < HEADS; r += 1u) {
        if CAP > 0.0 {
            for (var j = 0u; j < PAGE; j += 1u) { out.p[r][j] = softcap(out.p[r][j], CAP); }
        }
        var top = LOWEST;
        for (var j = 0u; j < PAGE; j += 1u) { top = max(top, select(LOWEST, out.p[r][j], is_seen(j, seen))); }
        var sum = 0.0;
        for (var j = 0u; j < PAGE; j += 1u) {
            out.p[r][j] = select(0.0, exp(out.p[r][j] - top), is_seen(j, seen));
            sum += out.p[r][j];
        }
        out.top[r] = top;
        out.sum[r] = sum;
    }
    return out;
}

// sum_j p[j] v[j] over the seen keys, 4 dims of it: `base` is those of the first key.
fn answer(weights: ptr<function, Weights>, base: u32, seen: vec2<u32>) -> array<vec4<f32>, HEADS> {
    var out: array<vec4<f32>, HEADS>;
    for (var r = 0u; r < HEADS; r += 1u) { out[r] = vec4(0.0); }
    for (var j = 0u; j < PAGE; j += 1u) {
        // An unseen value may be NaN: it is skipped, not multiplied by 0.
        let v4 = select(vec4(0.0), kv_unpack(v_pages[base + j * D4]), is_seen(j, seen));
        for (var r = 0u; r < HEADS; r += 1u) { out[r] = fma(vec4((*weights).p[r][j]), v4, out[r]); }
    }
    return out;
}
