// How a linear gets at x: every invocation loads what it needs.
alias X = vec2<u32>;

// What is held of the 32 x of group g of row t.
fn x_group(t: u32, g: u32, _lane: Lane) -> X {
    return vec2(t, 8u * g);
}

// A loop: where all loads of a group are in one block, drivers run out of registers.
fn add_quarters(
    x: Held,
    q: ptr<function, array<Loaded, ROWS>>,
    dots: ptr<function, array<PerToken, ROWS>>,
    x_sum: ptr<function, PerToken>,
) {
    for (var j = 0u; j < 4u; j += 1u) { add_quarter(j, x, q, dots, x_sum); }
}

// x[t, 4i .. 4i + 4] of the group.
fn x_of(x: X, i: u32) -> vec4<f32> {
    return x_at(x.x, x.y + i);
}
