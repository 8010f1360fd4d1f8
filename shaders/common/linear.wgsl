// What all linears share, so that they give the same bits. A tile of ROWS weight rows and TOKENS tokens is held in registers:
// each weight is decoded once for all tokens, each x is loaded once for all rows.
override N: u32;        // rows of w
override K: u32;
override GROUPS: u32;   // K / 32, rounded up; weights beyond K are 0
override LANES: u32;    // invocations of a workgroup
override ROWS: u32;     // rows of w of one invocation, LANES apart

const K4 = (K + 3u) / 4u;

// sum_k w[n + LANES r, k] * x[t + i, k] for r < ROWS, i < TOKENS; rows beyond N repeat the last.
fn products(n: u32, t: u32, last: u32, lane: Lane) -> array<PerToken, ROWS> {
    var sums: array<PerToken, ROWS>;
    var bases: array<u32, ROWS>;
    for (var r = 0u; r < ROWS; r += 1u) {
        bases[r] = row_base(min(n + LANES * r, N - 1u));
        sums[r] = PerToken(0.0);
    }
    for (var g = 0u; g < GROUPS; g += 1u) {
        let x = hold(t, last, g, lane);
        var q: array<Group, ROWS>;
        var dots: array<PerToken, ROWS>;
        var x_sum = PerToken(0.0);
        for (var r = 0u; r < ROWS; r += 1u) {
            q[r] = group(bases[r], g);
            dots[r] = PerToken(0.0);
        }
        add_quarter(0u, x, &q, &dots, &x_sum);
        add_quarter(1u, x, &q, &dots, &x_sum);
        add_quarter(2u, x, &q, &dots, &x_sum);
        add_quarter(3u, x, &q, &dots, &x_sum);
        for (var r = 0u; r < ROWS; r += 1u) {
            let dm = scale(bases[r], g);
            sums[r] = fma(PerToken(dm.x), dots[r], sums[r]);
            if MINIMUM { sums[r] = fma(PerToken(dm.y), x_sum, sums[r]); }
        }
    }
    return sums;
}

// Adds the products of weights 4j .. and 16 + 4j .. of the group, and these x.
fn add_quarter(
    j: u32,
    x: Held,
    q: ptr<function, array<Group, ROWS>>,
    dots: ptr<function, array<PerToken, ROWS>>,
    x_sum: ptr<function, PerToken>,
) {
    let low = held(x, j);
    let high = held(x, 4u + j);
    if MINIMUM {
        *x_sum += ((low[0] + low[1]) + (low[2] + low[3])) + ((high[0] + high[1]) + (high[2] + high[3]));
    }
    for (var r = 0u; r < ROWS; r += 1u) {
        let w8 = quants((*q)[r], j);
        (*dots)[r] = add_products(add_products((*dots)[r], w8[0], low), w8[1], high);
    }
}

// sum + w . x, in the one order that all linears sum in.
fn add_products(sum: PerToken, w4: vec4<f32>, x: array<PerToken, 4>) -> PerToken {
    let half = fma(PerToken(w4.y), x[1], fma(PerToken(w4.x), x[0], sum));
    return fma(PerToken(w4.w), x[3], fma(PerToken(w4.z), x[2], half));
}

// x[t, 4i .. 4i + 4], 0 beyond K
fn x_at(t: u32, i: u32) -> vec4<f32> {
    if K % 32u == 0u { return normed(x[t * K4 + i], i); }
    let left = vec4(K) > 4u * i + vec4(0u, 1u, 2u, 3u);
    return select(vec4(0.0), normed(x[t * K4 + min(i, K4 - 1u)], min(i, K4 - 1u)), left);
}
