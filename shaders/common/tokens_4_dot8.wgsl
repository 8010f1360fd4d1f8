// A linear's tile has four tokens, whose x are int8; those beyond the last are the last.
const TOKENS = 4u;
alias PerToken = vec4<f32>;
alias Dots = vec4<i32>;
alias Held = array<X, 4>;

fn hold(t: u32, last: u32, g: u32, lane: Lane) -> Held {
    return Held(
        x_group(t, g, lane), x_group(min(t + 1u, last), g, lane),
        x_group(min(t + 2u, last), g, lane), x_group(min(t + 3u, last), g, lane),
    );
}

// x of 4 consecutive k from 4i on, a word for every token.
fn held(x: Held, i: u32) -> vec4<u32> {
    return vec4(x_of(x[0], i), x_of(x[1], i), x_of(x[2], i), x_of(x[3], i));
}

fn scales(x: Held) -> PerToken {
    return vec4(x[0].scale, x[1].scale, x[2].scale, x[3].scale);
}

fn dot8(w: u32, x: vec4<u32>) -> Dots {
    return vec4(dot4I8Packed(w, x.x), dot4I8Packed(w, x.y), dot4I8Packed(w, x.z), dot4I8Packed(w, x.w));
}

fn of_token(x: PerToken, i: u32) -> f32 {
    return x[i];
}
