// Rounds the keys and values of a step's tokens to blocks of 32 dims with a scale each, in their page slots. Before that keys, and queries
// in place, are turned by y_i = R^-1/2 sum_j (-1)^popcount(i & j) x_j over each R dims, which changes no product of theirs and spreads the
// few large dims of keys.
// One invocation for each (piece of 64 dims, head, t): heads 0 .. H of q, H .. H + G of k, H + G .. H + 2G of v.
override D4: u32;  // D / 4
override R4: u32;  // R / 4, a divisor of D4 and 8
override H: u32;
override G: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;     // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;          // [T, G, D4]
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;          // [T, G, D4]
@group(0) @binding(4) var<storage, read_write> q: array<vec4<f32>>;    // [T, H, D4]
@group(0) @binding(5) var<storage, read_write> k_pages: array<Kv>;     // [pages, G], blocks of PAGE rows
@group(0) @binding(6) var<storage, read_write> v_pages: array<Kv>;     // [pages, G], blocks of PAGE rows

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let piece = id.x % PIECES;
    let head = id.x / PIECES;
    let t = id.y;
    if head >= H + 2u * G || t >= step.n_tokens { return; }
    let g = (head - H) % G;
    var x: array<vec4<f32>, 16>;
    for (var d = 0u; d < 16u; d += 1u) {
        x[d] = vec4(0.0);
        let dims = 16u * piece + d;
        if dims >= D4 { continue; }
        if head < H {
            x[d] = q[(t * H + head) * D4 + dims];
        } else if head < H + G {
            x[d] = k[(t * G + g) * D4 + dims];
        } else {
            x[d] = v[(t * G + g) * D4 + dims];
        }
    }
    if head < H + G { turn(&x); }
    if head >= H {
        put(head >= H + G, kv_row(t, g), piece, &x);
        return;
    }
    for (var d = 0u; d < min(16u, D4 - 16u * piece); d += 1u) { q[(t * H + head) * D4 + 16u * piece + d] = x[d]; }
}

// Each 4 R4 of the dims.
fn turn(x: ptr<function, array<vec4<f32>, 16>>) {
    for (var d = 0u; d < 16u; d += 1u) {
        let a = (*x)[d];
        let b = vec4(a.x + a.y, a.x - a.y, a.z + a.w, a.z - a.w);
        (*x)[d] = vec4(b.xy + b.zw, b.xy - b.zw) * inverseSqrt(f32(4u * R4));
    }
    for (var h = 1u; h < R4; h *= 2u) {
        for (var d = 0u; d < 16u; d += 1u) {
            if (d & h) != 0u { continue; }
            let a = (*x)[d];
            let b = (*x)[d + h];
            (*x)[d] = a + b;
            (*x)[d + h] = a - b;
        }
    }
}
