// Rounds the keys and values of a step's tokens to blocks of 32 dims with a scale each, in their page slots; the included file says how a
// block is rounded. Before that keys, and queries in place, are turned by y_i = R^-1/2 sum_j (-1)^popcount(i & j) x_j over each R dims,
// which changes no product of theirs and spreads the few large dims of keys. One invocation for each (two blocks, whose scales are in one
// word, head, t): heads 0 .. H of q, H .. H + G of k, H + G .. H + 2G of v.
override D4: u32;  // D / 4
override R4: u32;  // R / 4, a divisor of D4 and 8
override H: u32;
override G: u32;

@group(0) @binding(0) var<uniform> step: Step;
@group(0) @binding(1) var<storage, read> tokens: array<vec4<u32>>;     // [T]: token, position, page slot, sequence
@group(0) @binding(2) var<storage, read> k: array<vec4<f32>>;          // [T, G, D4]
@group(0) @binding(3) var<storage, read> v: array<vec4<f32>>;          // [T, G, D4]
@group(0) @binding(4) var<storage, read_write> q: array<vec4<f32>>;    // [T, H, D4]
@group(0) @binding(5) var<storage, read_write> k_pages: array<u32>;    // [pages, G], blocks of PAGE rows
@group(0) @binding(6) var<storage, read_write> v_pages: array<u32>;    // [pages, G], blocks of PAGE rows

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let i = id.x % OF_SCALES;
    let head = id.x / OF_SCALES;
    let t = id.y;
    if head >= H + 2u * G || t >= step.n_tokens { return; }
    let g = (head - H) % G;
    let row = kv_row(t, g);
    var scales = vec2(0.0);
    for (var b = 0u; b < 2u; b += 1u) {
        let block = 2u * i + b;
        if block >= BLOCKS { break; }
        var x: array<vec4<f32>, 8>;
        for (var d = 0u; d < 8u; d += 1u) {
            x[d] = vec4(0.0);
            let dims = 8u * block + d;
            if dims < D4 {
                if head < H {
                    x[d] = q[(t * H + head) * D4 + dims];
                } else if head < H + G {
                    x[d] = k[(t * G + g) * D4 + dims];
                } else {
                    x[d] = v[(t * G + g) * D4 + dims];
                }
            }
        }
        if head < H + G { turn(&x); }
        if head < H {
            for (var d = 0u; d < min(8u, D4 - 8u * block); d += 1u) { q[(t * H + head) * D4 + 8u * block + d] = x[d]; }
            continue;
        }
        var least = x[0];
        var most = x[0];
        for (var d = 1u; d < 8u; d += 1u) {
            least = min(least, x[d]);
            most = max(most, x[d]);
        }
        let ends = vec2(min(min(least.x, least.y), min(least.z, least.w)), max(max(most.x, most.y), max(most.z, most.w)));
        // Rounded to what an f16 holds, by the bits: packing it may round as it likes, and x is divided by what will be read.
        let scale = bitcast<u32>(clamp(scale_of(ends.x, ends.y), -65504.0, 65504.0));
        scales[b] = bitcast<f32>((scale + 0x1000u) & 0xffffe000u);
        let inverse = select(0.0, 1.0 / scales[b], scales[b] != 0.0);
        for (var word = 0u; word < BITS; word += 1u) {
            let at = quants_at(row / PAGE, row % PAGE, 8u * block) + word;
            let rounded = block_word(&x, word, inverse);
            if head < H + G { k_pages[at] = rounded; } else { v_pages[at] = rounded; }
        }
    }
    if head < H { return; }
    let at = scales_at(row / PAGE, row % PAGE, 2u * i);
    if head < H + G { k_pages[at] = pack2x16float(scales); } else { v_pages[at] = pack2x16float(scales); }
}

// Each 4 R4 of the dims.
fn turn(x: ptr<function, array<vec4<f32>, 8>>) {
    for (var d = 0u; d < 8u; d += 1u) {
        let a = (*x)[d];
        let b = vec4(a.x + a.y, a.x - a.y, a.z + a.w, a.z - a.w);
        (*x)[d] = vec4(b.xy + b.zw, b.xy - b.zw) * inverseSqrt(f32(4u * R4));
    }
    for (var h = 1u; h < R4; h *= 2u) {
        for (var d = 0u; d < 8u; d += 1u) {
            if (d & h) != 0u { continue; }
            let a = (*x)[d];
            let b = (*x)[d + h];
            (*x)[d] = a + b;
            (*x)[d + h] = a - b;
        }
    }
}
