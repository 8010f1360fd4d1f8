// q, k and v of x or of x normalised, in one: rows of w are pairs of dims, PAIR0 .. PAIR0 + PAIRS of all pairs of heads
// 0 .. H of q, H .. H + G of k, H + G .. H + 2G of v. Pairs p < R2 of q and k turn by the angle whose
// (cos, sin) is rope[position, p]; q is written to [t, h, 2p ..], k and v to the rows
// that the included file names.
// Of each 16 rows of w the first 8 are the first dims of pairs, the others the second.
// One workgroup for each (LANES * ROWS / 2 pairs, TOKENS t).
override D2: u32;      // pairs of a head: D / 2
override R2: u32;      // of which the first R2 turn
override H: u32;
override G: u32;
override PAIRS: u32;
override PAIR0: u32;
override BIAS: u32;    // 1: vectors hold the biases of all pairs behind the gains

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;        // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> x: array<vec4<f32>>;             // [T, K]
@group(0) @binding(3) var<storage, read> vectors: array<vec4<f32>>;       // gains of the norm [K], biases [H + 2G, D2] of 2
@group(0) @binding(4) var<storage, read> w: array<vec4<u32>>;             // [N, K], the format's layout
@group(0) @binding(5) var<storage, read> rope: array<vec2<f32>>;          // [context, R2] of (cos, sin)
@group(0) @binding(6) var<storage, read_write> q: array<vec2<f32>>;       // [T, H, D2]
@group(0) @binding(7) var<storage, read_write> k_pages: array<Kv2>;       // [pages, G, PAGE, D2] or [T, G, D2]
@group(0) @binding(8) var<storage, read_write> v_pages: array<Kv2>;       // [pages, G, PAGE, D2] or [T, G, D2]

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let t = group.y * TOKENS;
    if t >= step.n_tokens { return; }
    prepare(t, lane);
    var sums = products(group.x, t, step.n_tokens - 1u, lane);
    for (var r = 0u; r < ROWS; r += 2u) {
        let pair = row_of(group.x, lane, r) / 16u * 8u + lane.index % 8u;
        if pair >= PAIRS { break; }
        for (var i = turn(lane); i < TOKENS; i += TURNS) {
            if t + i < step.n_tokens { put(t + i, PAIR0 + pair, vec2(of_token(sums[r], i), of_token(sums[r + 1u], i))); }
        }
    }
}

fn put(t: u32, pair: u32, value: vec2<f32>) {
    let head = pair / D2;
    let p = pair % D2;
    var v = value;
    if BIAS == 1u {
        let both = vectors[K4 + pair / 2u];
        v += select(both.xy, both.zw, pair % 2u == 1u);
    }
    if head < H + G && p < R2 {
        let turn = rope[tokens[t].y * R2 + p];
        v = vec2(v.x * turn.x - v.y * turn.y, v.x * turn.y + v.y * turn.x);
    }
    if head < H {
        q[(t * H + head) * D2 + p] = v;
        return;
    }
    let to = kv_row(t, (head - H) % G) * D2 + p;
    if head < H + G { k_pages[to] = kv_pack2(v); } else { v_pages[to] = kv_pack2(v); }
}
