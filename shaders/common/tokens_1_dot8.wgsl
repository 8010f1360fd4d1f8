// A linear's tile has one token, whose x are int8.
const TOKENS = 1u;
alias PerToken = f32;
alias Dots = i32;
alias Held = X;

fn hold(t: u32, _last: u32, g: u32, lane: Lane) -> Held {
    return x_group(t, g, lane);
}

// x of 4 consecutive k from 4i on.
fn held(x: Held, i: u32) -> u32 {
    return x_of(x, i);
}

fn scales(x: Held) -> PerToken {
    return x.scale;
}

fn dot8(w: u32, x: u32) -> Dots {
    return dot4I8Packed(w, x);
}

fn of_token(x: PerToken, _i: u32) -> f32 {
    return x;
}
