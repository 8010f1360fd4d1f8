// The products of a linear, so that all linears give the same bits. A tile of ROWS weight rows and TOKENS tokens is held in
// registers: each weight is decoded once for all tokens, each x is loaded once for all rows. The included file says in which
// numbers products are formed.

// sum_k w[n, k] * x[t + i, k] for each row n of the invocation, i < TOKENS; rows beyond N repeat the last.
fn products(group_x: u32, t: u32, last: u32, lane: Lane) -> array<PerToken, ROWS> {
    var sums: array<PerToken, ROWS>;
    var bases: array<u32, ROWS>;
    for (var r = 0u; r < ROWS; r += 1u) {
        bases[r] = row_base(min(row_of(group_x, lane, r), N - 1u));
        sums[r] = PerToken(0.0);
    }
    for (var g = 0u; g < GROUPS; g += 1u) {
        let x = hold(t, last, g, lane);
        var q: array<Loaded, ROWS>;
        var dots: array<PerToken, ROWS>;
        var x_sum = PerToken(0.0);
        for (var r = 0u; r < ROWS; r += 1u) {
            q[r] = load(bases[r], g);
            dots[r] = PerToken(0.0);
        }
        add_quarters(x, &q, &dots, &x_sum);
        for (var r = 0u; r < ROWS; r += 1u) {
            sums[r] = add_group(sums[r], bases[r], g, dots[r], x_sum);
        }
    }
    return sums;
}

// Adds the products of weights 4j .. and 16 + 4j .. of the group, and these x.
fn add_quarter(
    j: u32,
    x: Held,
    q: ptr<function, array<Loaded, ROWS>>,
    dots: ptr<function, array<PerToken, ROWS>>,
    x_sum: ptr<function, PerToken>,
) {
    let low = held(x, j);
    let high = held(x, 4u + j);
    if SUMS_X {
        *x_sum += PerToken(((low[0] + low[1]) + (low[2] + low[3])) + ((high[0] + high[1]) + (high[2] + high[3])));
    }
    for (var r = 0u; r < ROWS; r += 1u) {
        let w8 = decode((*q)[r], j);
        (*dots)[r] = add_products(add_products((*dots)[r], w8[0], low), w8[1], high);
    }
}
