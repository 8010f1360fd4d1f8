// A linear's tile has four tokens, those beyond the last are the last.
const TOKENS = 4u;
alias PerToken = vec4<f32>;
alias NumPerToken = vec4<Num>;
alias Held = array<X, 4>;

fn hold(t: u32, last: u32, g: u32, lane: Lane) -> Held {
    return Held(
        x_group(t, g, lane), x_group(min(t + 1u, last), g, lane),
        x_group(min(t + 2u, last), g, lane), x_group(min(t + 3u, last), g, lane),
    );
}

// x of 4 consecutive k from 4i on, for every token.
fn held(x: Held, i: u32) -> array<NumPerToken, 4> {
    let a = transpose(mat4x4(
        narrow(x_of(x[0], i)), narrow(x_of(x[1], i)), narrow(x_of(x[2], i)), narrow(x_of(x[3], i)),
    ));
    return array<NumPerToken, 4>(a[0], a[1], a[2], a[3]);
}

fn of_token(x: PerToken, i: u32) -> f32 {
    return x[i];
}
