// Writes rows of keys and values, rounded to blocks: dims 64 piece .. of a row, two blocks, whose scales are in one word. Dims beyond the
// last are 0.
const PIECES = OF_SCALES;

fn put(is_value: bool, row: u32, piece: u32, x: ptr<function, array<vec4<f32>, 16>>) {
    var scales = vec2(0.0);
    for (var b = 0u; b < 2u; b += 1u) {
        let block = 2u * piece + b;
        if block >= BLOCKS { break; }
        var of_block: array<vec4<f32>, 8>;
        var least = vec4(0.0);
        var most = vec4(0.0);
        for (var d = 0u; d < 8u; d += 1u) {
            of_block[d] = (*x)[8u * b + d];
            least = min(least, of_block[d]);
            most = max(most, of_block[d]);
        }
        let ends = vec2(min(min(least.x, least.y), min(least.z, least.w)), max(max(most.x, most.y), max(most.z, most.w)));
        // Rounded to what an f16 holds, by the bits: packing it may round as it likes, and x is divided by what will be read.
        let scale = bitcast<u32>(clamp(scale_of(ends.x, ends.y), -65504.0, 65504.0));
        scales[b] = bitcast<f32>((scale + 0x1000u) & 0xffffe000u);
        let inverse = select(0.0, 1.0 / scales[b], scales[b] != 0.0);
        for (var word = 0u; word < BITS; word += 1u) {
            let at = quants_at(row / PAGE, row % PAGE, 8u * block) + word;
            let q = block_word(&of_block, word, inverse);
            if is_value { v_pages[at] = q; } else { k_pages[at] = q; }
        }
    }
    let at = scales_at(row / PAGE, row % PAGE, 2u * piece);
    if is_value { v_pages[at] = pack2x16float(scales); } else { k_pages[at] = pack2x16float(scales); }
}
