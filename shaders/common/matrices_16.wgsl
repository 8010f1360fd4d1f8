// Cooperative matrices of 16 × 16, of which sums are f32.
alias Left = coop_mat16x16<Num, A>;
alias Right = coop_mat16x16<Num, B>;
alias Sums = coop_mat16x16<f32, C>;
const SIZE = 16u;
