// Cooperative matrices of 8 × 8: products of f16, x beyond which is clamped, sums of f32.
alias Num = f16;
alias Left = coop_mat8x8<f16, A>;
alias Right = coop_mat8x8<f16, B>;
alias Sums = coop_mat8x8<f32, C>;
const SIZE = 8u;
// Num from one staged row to the next: whole 16 bytes, and no multiple of 128 bytes, so that rows lie in different banks.
const PITCH = 40u;

fn narrow(x: vec4<f32>) -> vec4<f16> {
    return vec4<f16>(clamp(x, vec4(-65504.0), vec4(65504.0)));
}
