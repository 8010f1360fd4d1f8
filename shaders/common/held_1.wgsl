// What is held of x for one token.
alias NumPerToken = Num;

// x of 4 consecutive k from 4i on.
fn held(x: Held, i: u32) -> array<NumPerToken, 4> {
    let a = narrow(x_of(x, i));
    return array<NumPerToken, 4>(a.x, a.y, a.z, a.w);
}
