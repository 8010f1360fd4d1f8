// Numbers of products: f16. What is beyond it is clamped.
alias Num = f16;

fn narrow(x: vec4<f32>) -> vec4<f16> {
    return vec4<f16>(clamp(x, vec4(-65504.0), vec4(65504.0)));
}
