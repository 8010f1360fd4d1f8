// Keys and values of a token are written to its page slot.
override PAGE: u32;

// The row of token t, head g.
fn kv_row(t: u32, g: u32) -> u32 {
    let slot = tokens[t].z;
    return row_at(slot / PAGE, g, slot);
}
