// What all linears share: which rows an invocation has, and how x is read.
override N: u32;        // rows of w
override K: u32;
override GROUPS: u32;   // K / 32, rounded up; weights beyond K are 0
override LANES: u32;    // invocations of a workgroup, a multiple of 8
override ROWS: u32;     // rows of w of one invocation

const K4 = (K + 3u) / 4u;

// Row r of an invocation. Eight neighbours have the rows of ROWS slabs of 8, one of each slab: so pairs of slabs are of one
// invocation, whatever the tile.
fn row_of(group: u32, lane: Lane, r: u32) -> u32 {
    let i = lane.index % (LANES / TURNS);
    return (group * (LANES / TURNS) + i / 8u * 8u) * ROWS + 8u * r + i % 8u;
}

// x[t, 4i .. 4i + 4], 0 beyond K
fn x_at(t: u32, i: u32) -> vec4<f32> {
    if K % 32u == 0u { return normed(x[t * K4 + i], i); }
    let left = vec4(K) > 4u * i + vec4(0u, 1u, 2u, 3u);
    return select(vec4(0.0), normed(x[t * K4 + min(i, K4 - 1u)], min(i, K4 - 1u)), left);
}
