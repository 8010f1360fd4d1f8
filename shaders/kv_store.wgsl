// Rounds the keys and values of a step's tokens to blocks of 32 dims with a scale each, in their page slots. The included file says how a
// block is rounded. One invocation for each (two blocks, whose scales are in one word, head of k or of v, t).
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
    let i = id.x % OF_SCALES;
    let head = id.x / OF_SCALES;
    let t = id.y;
    if head >= 2u * G || t >= step.n_tokens { return; }
    let row = kv_row(t, head % G);
    var scales = vec2(0.0);
    for (var b = 0u; b < 2u; b += 1u) {
        let block = 2u * i + b;
        if block >= BLOCKS { break; }
        var x: array<vec4<f32>, 8>;
        var least = vec4(0.0);
        var most = vec4(0.0);
        for (var d = 0u; d < 8u; d += 1u) {
            x[d] = vec4(0.0);
            let dims = 8u * block + d;
            if dims < D4 {
                let at = (t * G + head % G) * D4 + dims;
                if head < G { x[d] = k[at]; } else { x[d] = v[at]; }
            }
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
            let q = block_word(&x, word, inverse);
            if head < G { k_pages[at] = q; } else { v_pages[at] = q; }
        }
    }
    let at = scales_at(row / PAGE, row % PAGE, 2u * i);
    if head < G { k_pages[at] = pack2x16float(scales); } else { v_pages[at] = pack2x16float(scales); }
}
