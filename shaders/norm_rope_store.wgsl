// Normalises the heads of q and k, rotates them; writes q, and k and v to the rows that the included file names. Pair p of a head turns by the
// angle whose (cos, sin) is rope[position, p]; which dims are a pair, the included file says. Dims from R on do not turn. One
// invocation for each (piece of 8 dims, head, t), which sums the squares of its head by itself. x holds the heads 0 .. H of q,
// H .. H + G of k and H + G .. H + 2G of v.
override D4: u32;  // D / 4
override R4: u32;  // R / 4
override H: u32;
override G: u32;
override EPS: f32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;         // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> rope: array<vec4<f32>>;           // [context, R / 2] of (cos, sin)
@group(0) @binding(3) var<storage, read> x: array<vec4<f32>>;              // [T, H + 2G, D4]
@group(0) @binding(4) var<storage, read> gains: array<vec4<f32>>;          // [2, D4]: of q, of k
@group(0) @binding(5) var<storage, read_write> q: array<vec4<f32>>;        // [T, H, D4]
@group(0) @binding(6) var<storage, read_write> k_pages: array<Kv4>;        // [pages, G, PAGE, D4] or [T, G, D4]
@group(0) @binding(7) var<storage, read_write> v_pages: array<Kv4>;        // [pages, G, PAGE, D4] or [T, G, D4]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>, lane: Lane) {
    let pieces = D4 / 2u;
    let i = id.x % pieces;
    let head = id.x / pieces;
    let t = id.y;
    if head >= H + 2u * G || t >= step.n_tokens { return; }
    // Values do not turn, nor do dims from R on.
    let turns = head < H + G && i < R4 / 2u;
    let dims = select(vec2(2u * i, 2u * i + 1u), piece(i), turns);
    let start = (t * (H + 2u * G) + head) * D4;
    var v = array<vec4<f32>, 2>(x[start + dims.x], x[start + dims.y]);
    if head < H + G {
        let scale = rms_scale(start, 4u * D4, EPS, lane);
        let gain = select(0u, D4, head >= H);
        v = array<vec4<f32>, 2>(gains[gain + dims.x] * v[0] * scale, gains[gain + dims.y] * v[1] * scale);
    }
    if turns {
        let at = tokens[t].y * R4 + 2u * i;
        v = rotate(v, array<vec4<f32>, 2>(rope[at], rope[at + 1u]));
    }
    if head < H {
        let to = (t * H + head) * D4;
        q[to + dims.x] = v[0];
        q[to + dims.y] = v[1];
        return;
    }
    let to = kv_row(t, (head - H) % G) * D4;
    if head < H + G {
        k_pages[to + dims.x] = kv_pack(v[0]);
        k_pages[to + dims.y] = kv_pack(v[1]);
    } else {
        v_pages[to + dims.x] = kv_pack(v[0]);
        v_pages[to + dims.y] = kv_pack(v[1]);
    }
}
