// Rotates q in place; writes rotated k, and v, to the page slot of each token. Interleaved pairs: (2i, 2i + 1) of a head
// turn by the angle whose (cos, sin) is rope[position, i]. One invocation for each (4 dims, head, t); heads H .. H + G
// are those of k, H + G .. H + 2G those of v.
override D4: u32;  // D / 4
override H: u32;
override G: u32;
override PAGE: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;         // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> rope: array<vec4<f32>>;           // [context, D4]: cos, sin, cos, sin
@group(0) @binding(3) var<storage, read> k: array<vec4<f32>>;              // [T, G, D4]
@group(0) @binding(4) var<storage, read> v: array<vec4<f32>>;              // [T, G, D4]
@group(0) @binding(5) var<storage, read_write> q: array<vec4<f32>>;        // [T, H, D4]
@group(0) @binding(6) var<storage, read_write> k_pages: array<Kv4>;        // [pages, G, PAGE, D4]
@group(0) @binding(7) var<storage, read_write> v_pages: array<Kv4>;        // [pages, G, PAGE, D4]

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x % D4;
    let head = id.x / D4;
    let t = id.y;
    if head >= H + 2u * G || t >= step.n_tokens { return; }
    let turn = rope[tokens[t].y * D4 + i];
    if head < H {
        let at = (t * H + head) * D4 + i;
        q[at] = rotate(q[at], turn);
        return;
    }
    let g = (head - H) % G;
    let source = (t * G + g) * D4 + i;
    let slot = tokens[t].z;
    let to = ((slot / PAGE * G + g) * PAGE + slot % PAGE) * D4 + i;
    if head < H + G {
        k_pages[to] = kv_pack(rotate(k[source], turn));
    } else {
        v_pages[to] = kv_pack(v[source]);
    }
}

fn rotate(x: vec4<f32>, turn: vec4<f32>) -> vec4<f32> {
    return vec4(
        x.x * turn.x - x.y * turn.y, x.x * turn.y + x.y * turn.x,
        x.z * turn.z - x.w * turn.w, x.z * turn.w + x.w * turn.z,
    );
}
