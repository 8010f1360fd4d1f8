// Rounds the keys and values of a step's tokens to blocks of 32 dims with a scale each, in their page slots.
// One invocation for each (piece of two blocks, head of k or of v, t).
override D4: u32;  // D / 4
override G: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;     // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;          // [T, G, D4]
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;          // [T, G, D4]
@group(0) @binding(4) var<storage, read_write> k_pages: array<u32>;    // [pages, G], blocks of PAGE rows
@group(0) @binding(5) var<storage, read_write> v_pages: array<u32>;    // [pages, G], blocks of PAGE rows

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let piece = id.x % PIECES;
    let head = id.x / PIECES;
    let t = id.y;
    if head >= 2u * G || t >= step.n_tokens { return; }
    var x: array<vec4<f32>, 16>;
    for (var d = 0u; d < 16u; d += 1u) {
        x[d] = vec4(0.0);
        let dims = 16u * piece + d;
        if dims >= D4 { continue; }
        let at = (t * G + head % G) * D4 + dims;
        if head < G { x[d] = k[at]; } else { x[d] = v[at]; }
    }
    put(head >= G, kv_row(t, head % G), piece, &x);
}
