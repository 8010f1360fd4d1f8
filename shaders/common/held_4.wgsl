// What is held of x for four tokens.
alias NumPerToken = vec4<Num>;

// x of 4 consecutive k from 4i on, for every token.
fn held(x: Held, i: u32) -> array<NumPerToken, 4> {
    let a = transpose(mat4x4(
        narrow(x_of(x[0], i)), narrow(x_of(x[1], i)), narrow(x_of(x[2], i)), narrow(x_of(x[3], i)),
    ));
    return array<NumPerToken, 4>(a[0], a[1], a[2], a[3]);
}
