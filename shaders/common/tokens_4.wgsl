// A linear's tile has four tokens, those beyond the last are the last.
const TOKENS = 4u;
const TURNS = 1u;
alias PerToken = vec4<f32>;
alias Held = array<X, 4>;

fn hold(t: u32, last: u32, g: u32, lane: Lane) -> Held {
    return Held(
        x_group(t, g, lane), x_group(min(t + 1u, last), g, lane),
        x_group(min(t + 2u, last), g, lane), x_group(min(t + 3u, last), g, lane),
    );
}

fn turn(_lane: Lane) -> u32 {
    return 0u;
}

fn of_token(x: PerToken, i: u32) -> f32 {
    return x[i];
}
