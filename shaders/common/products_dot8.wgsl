// The products of a linear by dot products of four int8, which are exact: x is rounded to 127 steps of the largest of each group
// of 32, as llama.cpp's Q8_1 is. A tile of ROWS weight rows and TOKENS tokens is held in registers.
// A format gives `packed`, its quants 4j .. and 16 + 4j .. of a group as int8, and `halves`, what those are multiplied with.

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
        var q: array<Group, ROWS>;
        var low: array<Dots, ROWS>;
        var high: array<Dots, ROWS>;
        var x_sum = Dots(0);
        for (var r = 0u; r < ROWS; r += 1u) {
            q[r] = group(bases[r], g);
            low[r] = Dots(0);
            high[r] = Dots(0);
        }
        add_quarter(0u, x, &q, &low, &high, &x_sum);
        add_quarter(1u, x, &q, &low, &high, &x_sum);
        add_quarter(2u, x, &q, &low, &high, &x_sum);
        add_quarter(3u, x, &q, &low, &high, &x_sum);
        let x_scale = scales(x);
        for (var r = 0u; r < ROWS; r += 1u) {
            let dm = scale(bases[r], g);
            let of_halves = halves(q[r]);
            let dots = fma(PerToken(of_halves.y), PerToken(high[r]), of_halves.x * PerToken(low[r]));
            sums[r] = fma(dm.x * x_scale, dots, sums[r]);
            if MINIMUM { sums[r] = fma(dm.y * x_scale, PerToken(x_sum), sums[r]); }
        }
    }
    return sums;
}

// Adds the products of weights 4j .. and of 16 + 4j .. of the group, and these x.
fn add_quarter(
    j: u32,
    x: Held,
    q: ptr<function, array<Group, ROWS>>,
    low: ptr<function, array<Dots, ROWS>>,
    high: ptr<function, array<Dots, ROWS>>,
    x_sum: ptr<function, Dots>,
) {
    let x_low = held(x, j);
    let x_high = held(x, 4u + j);
    if MINIMUM { *x_sum += dot8(0x01010101u, x_low) + dot8(0x01010101u, x_high); }
    for (var r = 0u; r < ROWS; r += 1u) {
        let w8 = packed((*q)[r], j);
        (*low)[r] += dot8(w8.x, x_low);
        (*high)[r] += dot8(w8.y, x_high);
    }
}

// 127 steps to the largest magnitude `most`, int8 in a word.
fn round8(x: vec4<f32>, most: f32) -> u32 {
    return pack4xI8(vec4<i32>(round(x * select(0.0, 127.0 / most, most > 0.0))));
}

fn largest(x: vec4<f32>) -> f32 {
    let a = abs(x);
    return max(max(a.x, a.y), max(a.z, a.w));
}
