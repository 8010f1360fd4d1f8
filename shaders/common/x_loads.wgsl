// How a linear gets at x: every invocation loads what it needs.
alias X = vec2<u32>;

// What is held of the 32 x of group g of row t.
fn x_group(t: u32, g: u32, _lane: Lane) -> X {
    return vec2(t, 8u * g);
}

// x[t, 4i .. 4i + 4] of the group.
fn x_of(x: X, i: u32) -> vec4<f32> {
    return x_at(x.x, x.y + i);
}
