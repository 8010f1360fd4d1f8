// How a linear gets at x: of a group of 32, eight invocations of a subgroup load 4 each and tell the others.
// For subgroups of 8 or more.
alias X = vec4<f32>;

// What is held of the 32 x of group g of row t.
fn x_group(t: u32, g: u32, lane: Lane) -> X {
    return x_at(t, 8u * g + lane.in_subgroup % 8u);
}

// The quarters of the group one by one.
fn add_quarters(
    x: Held,
    q: ptr<function, array<Loaded, ROWS>>,
    dots: ptr<function, array<PerToken, ROWS>>,
    x_sum: ptr<function, PerToken>,
) {
    add_quarter(0u, x, q, dots, x_sum);
    add_quarter(1u, x, q, dots, x_sum);
    add_quarter(2u, x, q, dots, x_sum);
    add_quarter(3u, x, q, dots, x_sum);
}

// x[t, 4i .. 4i + 4] of the group. The id of a broadcast must be written out.
fn x_of(x: X, i: u32) -> vec4<f32> {
    switch i {
        case 0u: { return subgroupBroadcast(x, 0u); }
        case 1u: { return subgroupBroadcast(x, 1u); }
        case 2u: { return subgroupBroadcast(x, 2u); }
        case 3u: { return subgroupBroadcast(x, 3u); }
        case 4u: { return subgroupBroadcast(x, 4u); }
        case 5u: { return subgroupBroadcast(x, 5u); }
        case 6u: { return subgroupBroadcast(x, 6u); }
        default: { return subgroupBroadcast(x, 7u); }
    }
}
