// How a linear gets at x rounded to int8: every invocation loads and rounds a group of 32.
struct X {
    scale: f32,
    packed: array<u32, 8>,
}

// What is held of the 32 x of group g of row t.
fn x_group(t: u32, g: u32, _lane: Lane) -> X {
    var v: array<vec4<f32>, 8>;
    var most = 0.0;
    for (var i = 0u; i < 8u; i += 1u) {
        v[i] = x_at(t, 8u * g + i);
        most = max(most, largest(v[i]));
    }
    var x: X;
    x.scale = most / 127.0;
    for (var i = 0u; i < 8u; i += 1u) { x.packed[i] = round8(v[i], most); }
    return x;
}

// x[t, 4i .. 4i + 4] of the group.
fn x_of(x: X, i: u32) -> u32 {
    return x.packed[i];
}
