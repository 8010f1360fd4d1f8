// A linear's tile has one token.
const TOKENS = 1u;
const TURNS = 1u;
alias PerToken = f32;
alias Held = X;

fn hold(t: u32, _last: u32, g: u32, lane: Lane) -> Held {
    return x_group(t, g, lane);
}

fn turn(_lane: Lane) -> u32 {
    return 0u;
}

fn of_token(x: PerToken, _i: u32) -> f32 {
    return x;
}
