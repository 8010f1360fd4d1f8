// Cooperative matrices of 8 × 8, of which sums are f32.
alias Left = coop_mat8x8<Num, A>;
alias Right = coop_mat8x8<Num, B>;
alias Sums = coop_mat8x8<f32, C>;
const SIZE = 8u;
