// Products of f32: the quants of a group first, then their sum times the scale, one operation less a weight.
alias Loaded = Group;
const SUMS_X = MINIMUM;

fn load(base: u32, g: u32) -> Loaded {
    return group(base, g);
}

fn decode(q: Loaded, j: u32) -> array<vec4<f32>, 2> {
    return quants(q, j);
}

// sum + w . x, in the one order that all linears sum in.
fn add_products(sum: PerToken, w4: vec4<f32>, x: array<NumPerToken, 4>) -> PerToken {
    let half = fma(PerToken(w4.y), x[1], fma(PerToken(w4.x), x[0], sum));
    return fma(PerToken(w4.w), x[3], fma(PerToken(w4.z), x[2], half));
}

fn add_group(sum: PerToken, base: u32, g: u32, dots: PerToken, x_sum: PerToken) -> PerToken {
    let dm = scale(base, g);
    let scaled = fma(PerToken(dm.x), dots, sum);
    if MINIMUM { return fma(PerToken(dm.y), x_sum, scaled); }
    return scaled;
}
