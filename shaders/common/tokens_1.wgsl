// A linear's tile has one token.
const TOKENS = 1u;
alias PerToken = f32;
alias NumPerToken = Num;
alias Held = X;

fn hold(t: u32, _last: u32, g: u32, lane: Lane) -> Held {
    return x_group(t, g, lane);
}

// x of 4 consecutive k from 4i on.
fn held(x: Held, i: u32) -> array<NumPerToken, 4> {
    let a = narrow(x_of(x, i));
    return array<NumPerToken, 4>(a.x, a.y, a.z, a.w);
}

fn of_token(x: PerToken, _i: u32) -> f32 {
    return x;
}
