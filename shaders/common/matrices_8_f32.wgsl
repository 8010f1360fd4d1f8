// Cooperative matrices of 8 × 8: products of f32, sums of f32.
alias Num = f32;
alias Left = coop_mat8x8<f32, A>;
alias Right = coop_mat8x8<f32, B>;
alias Sums = coop_mat8x8<f32, C>;
const SIZE = 8u;
// Num from one staged row to the next: whole 16 bytes, and no multiple of 128 bytes, so that rows lie in different banks.
const PITCH = 36u;

fn narrow(x: vec4<f32>) -> vec4<f32> {
    return x;
}
