// How a linear gets at x rounded to int8: of a group of 32, eight invocations of a subgroup round 4 each and tell the others.
// For subgroups of 8 or more, in which every eight have the same 32.
struct X {
    scale: f32,
    packed: u32,
}

// What is held of the 32 x of group g of row t.
fn x_group(t: u32, g: u32, lane: Lane) -> X {
    let v = x_at(t, 8u * g + lane.in_subgroup % 8u);
    let most = subgroupMax(largest(v));
    return X(most / 127.0, round8(v, most));
}

// x[t, 4i .. 4i + 4] of the group. The id of a broadcast must be written out.
fn x_of(x: X, i: u32) -> u32 {
    switch i {
        case 0u: { return subgroupBroadcast(x.packed, 0u); }
        case 1u: { return subgroupBroadcast(x.packed, 1u); }
        case 2u: { return subgroupBroadcast(x.packed, 2u); }
        case 3u: { return subgroupBroadcast(x.packed, 3u); }
        case 4u: { return subgroupBroadcast(x.packed, 4u); }
        case 5u: { return subgroupBroadcast(x.packed, 5u); }
        case 6u: { return subgroupBroadcast(x.packed, 6u); }
        default: { return subgroupBroadcast(x.packed, 7u); }
    }
}
