// What attention_prefill and attention_decode share. The keys of a sequence are taken in runs of RUN entries of its page list: each run makes a
// part of its own, from its pages in order, and the parts are merged in order. So the bits of an answer depend on the list alone.
override D4: u32;  // D / 4
override H: u32;
override G: u32;
override HEADS: u32;  // query heads of one workgroup, a divisor of H / G
override PAGE: u32;
override RUN: u32;  // entries of a page list in one part
override SCALE: f32;
override CAP: f32;  // scores become CAP * tanh(score / CAP); 0: they stay
override WINDOW: u32;  // positions that a query sees, its own the last; 0: all before

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

// What one invocation holds of a run's part, for its OWN queries: CHUNKS times 4 dims of o = sum_s exp(score_s - top) v[s] over the
// seen keys, top = max_s score_s, sum = sum_s exp(score_s - top).
struct Part {
    o: array<array<vec4<f32>, CHUNKS>, OWN>,
    top: array<f32, OWN>,
    sum: array<f32, OWN>,
}
