// f32 as u32 in the same order, NaN above or below all: whatever the bits are, an order is total.
fn ordered(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}
