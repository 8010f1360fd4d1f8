// What is held of x as int8 for one token.
alias Dots = i32;

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
