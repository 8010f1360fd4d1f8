// x is taken as it is.
fn prepare(_t: u32, _lane: Lane) {}

fn normed(v: vec4<f32>, _i: u32) -> vec4<f32> {
    return v;
}
