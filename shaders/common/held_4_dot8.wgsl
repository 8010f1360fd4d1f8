// What is held of x as int8 for four tokens.
alias Dots = vec4<i32>;

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
