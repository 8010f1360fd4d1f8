// Reads rows of keys and values, by whichever file knows how they are stored.

// Dims 4i .. of a row.
fn key_of(row: u32, i: u32) -> vec4<f32> {
    return key4(row / PAGE, row % PAGE, i, key_scale(row / PAGE, row % PAGE, i / 8u));
}

fn value_of(row: u32, i: u32) -> vec4<f32> {
    return value4(row / PAGE, row % PAGE, i, value_scale(row / PAGE, row % PAGE, i / 8u));
}
