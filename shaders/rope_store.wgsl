// Rotates q in place; writes rotated k, and v, to the page slot of each token. Pair p of a head turns by the angle whose
// (cos, sin) is rope[position, p]; which dims are a pair, the included file says. Dims from R on stay as they are. One
// invocation for each (piece of 8 dims, head, t); heads H .. H + G are those of k, H + G .. H + 2G those of v.
override D4: u32;  // D / 4
override R4: u32;  // R / 4
override H: u32;
override G: u32;
override PAGE: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;         // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> rope: array<vec4<f32>>;           // [context, R / 2] of (cos, sin)
@group(0) @binding(3) var<storage, read> k: array<vec4<f32>>;              // [T, G, D4]
@group(0) @binding(4) var<storage, read> v: array<vec4<f32>>;              // [T, G, D4]
@group(0) @binding(5) var<storage, read_write> q: array<vec4<f32>>;        // [T, H, D4]
@group(0) @binding(6) var<storage, read_write> k_pages: array<Kv4>;        // [pages, G, PAGE, D4]
@group(0) @binding(7) var<storage, read_write> v_pages: array<Kv4>;        // [pages, G, PAGE, D4]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let pieces = D4 / 2u;
    let i = id.x % pieces;
    let head = id.x / pieces;
    let t = id.y;
    if head >= H + 2u * G || t >= step.n_tokens { return; }
    // Values do not turn, nor do dims from R on.
    let turns = head < H + G && i < R4 / 2u;
    let dims = select(vec2(2u * i, 2u * i + 1u), piece(i), turns);
    let start = (t * H + head) * D4;
    let g = (head - H) % G;
    let source = (t * G + g) * D4;
    var x: array<vec4<f32>, 2>;
    if head < H {
        x = array(q[start + dims.x], q[start + dims.y]);
    } else if head < H + G {
        x = array(k[source + dims.x], k[source + dims.y]);
    } else {
        x = array(v[source + dims.x], v[source + dims.y]);
    }
    if turns {
        let at = tokens[t].y * R4 + 2u * i;
        x = rotate(x, array(rope[at], rope[at + 1u]));
    }
    let slot = tokens[t].z;
    let to = ((slot / PAGE * G + g) * PAGE + slot % PAGE) * D4;
    if head < H {
        q[start + dims.x] = x[0];
        q[start + dims.y] = x[1];
    } else if head < H + G {
        k_pages[to + dims.x] = kv_pack(x[0]);
        k_pages[to + dims.y] = kv_pack(x[1]);
    } else {
        v_pages[to + dims.x] = kv_pack(x[0]);
        v_pages[to + dims.y] = kv_pack(x[1]);
    }
}
