// Numbers of products: f32.
alias Num = f32;

fn narrow(x: vec4<f32>) -> vec4<f32> {
    return x;
}
