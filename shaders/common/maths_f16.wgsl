// Products of f16, four of which are summed before they are added in f32. Weights are decoded whole, since quants times x go
// beyond f16; x beyond it is clamped.
alias Decoded = array<vec4<f16>, 2>;
const SUMS_X = false;

struct Loaded {
    q: Group,
    dm: vec2<f32>,
}

fn load(base: u32, g: u32) -> Loaded {
    return Loaded(group(base, g), scale(base, g));
}

fn decode(loaded: Loaded, j: u32) -> Decoded {
    let q = quants(loaded.q, j);
    let dm = loaded.dm;
    return Decoded(narrow(fma(vec4(dm.x), q[0], vec4(dm.y))), narrow(fma(vec4(dm.x), q[1], vec4(dm.y))));
}

// sum + w . x
fn add_products(sum: PerToken, w4: vec4<f16>, x: array<NumPerToken, 4>) -> PerToken {
    let half = fma(NumPerToken(w4.y), x[1], NumPerToken(w4.x) * x[0]);
    return sum + PerToken(fma(NumPerToken(w4.w), x[3], fma(NumPerToken(w4.z), x[2], half)));
}

fn add_group(sum: PerToken, _base: u32, _g: u32, dots: PerToken, _x_sum: PerToken) -> PerToken {
    return sum + dots;
}
