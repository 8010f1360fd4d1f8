// x is normalised while it is read, as rmsnorm does it: for linears of one token.
override EPS: f32;

var<private> x_scale: f32;

fn prepare(t: u32, lane: Lane) {
    x_scale = rms_scale(t * K4, K, EPS, lane);
}

fn normed(v: vec4<f32>, i: u32) -> vec4<f32> {
    return vectors[i] * v * x_scale;
}
