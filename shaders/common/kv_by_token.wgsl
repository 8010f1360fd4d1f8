// Keys and values are left in the order of tokens, for kv_store.

// The row of token t, head g.
fn kv_row(t: u32, g: u32) -> u32 {
    return t * G + g;
}
