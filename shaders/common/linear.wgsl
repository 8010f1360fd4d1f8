// What matvec and matmul share, so that both give the same bits. A tile of ROWS weight rows and TOKENS tokens is held in
// registers: each weight is decoded once for all tokens, each x is loaded once for all rows.
// A format gives `scale` (d, m) of a group of 32 weights d * q + m and `quants`, the q of weights 4j .. and 16 + 4j .. of it.
alias Sums = array<array<f32, TOKENS>, ROWS>;

// sum_k w[n + LANES r, k] * x[t + i, k] for r < ROWS, i < TOKENS; rows beyond N and tokens beyond `last` repeat the last.
fn products(n: u32, t: u32, last: u32) -> Sums {
    var sums: Sums;
    for (var r = 0u; r < ROWS; r += 1u) {
        for (var i = 0u; i < TOKENS; i += 1u) { sums[r][i] = 0.0; }
    }
    for (var g = 0u; g < GROUPS; g += 1u) {
        var dots: Sums;
        var x_sums: array<f32, TOKENS>;
        for (var r = 0u; r < ROWS; r += 1u) {
            for (var i = 0u; i < TOKENS; i += 1u) { dots[r][i] = 0.0; }
        }
        for (var i = 0u; i < TOKENS; i += 1u) { x_sums[i] = 0.0; }
        for (var j = 0u; j < 4u; j += 1u) {
            var low: array<vec4<f32>, TOKENS>;
            var high: array<vec4<f32>, TOKENS>;
            for (var i = 0u; i < TOKENS; i += 1u) {
                low[i] = x_at(min(t + i, last), g * 8u + j);
                high[i] = x_at(min(t + i, last), g * 8u + 4u + j);
                if MINIMUM { x_sums[i] += dot(low[i] + high[i], vec4(1.0)); }
            }
            for (var r = 0u; r < ROWS; r += 1u) {
                let q = quants(min(n + LANES * r, N - 1u), g, j);
                for (var i = 0u; i < TOKENS; i += 1u) {
                    dots[r][i] = add_dot(add_dot(dots[r][i], q[0], low[i]), q[1], high[i]);
                }
            }
        }
        for (var r = 0u; r < ROWS; r += 1u) {
            let dm = scale(min(n + LANES * r, N - 1u), g);
            for (var i = 0u; i < TOKENS; i += 1u) {
                sums[r][i] = fma(dm.x, dots[r][i], sums[r][i]);
                if MINIMUM { sums[r][i] = fma(dm.y, x_sums[i], sums[r][i]); }
            }
        }
    }
    return sums;
}

// x[t, 4i .. 4i + 4], 0 beyond K
fn x_at(t: u32, i: u32) -> vec4<f32> {
    if K % 32u == 0u { return x[t * K4 + i]; }
    let left = vec4(K) > 4u * i + vec4(0u, 1u, 2u, 3u);
    return select(vec4(0.0), x[t * K4 + min(i, K4 - 1u)], left);
}
