// The row of slot `slot` of page `page`, head `g`, counted through all pages and heads.
fn row_at(page: u32, g: u32, slot: u32) -> u32 {
    return (page * G + g) * PAGE + slot % PAGE;
}

// Dims 4i .. of a row.
fn key_of(row: u32, i: u32) -> vec4<f32> {
    return key4(row / PAGE, row % PAGE, i, key_scale(row / PAGE, row % PAGE, i / 8u));
}

fn value_of(row: u32, i: u32) -> vec4<f32> {
    return value4(row / PAGE, row % PAGE, i, value_scale(row / PAGE, row % PAGE, i / 8u));
}
