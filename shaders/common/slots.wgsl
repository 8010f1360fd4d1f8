// Where dims begin (in Kv4) of slot `slot` of page `page`, head `g`.
fn slot_base(page: u32, g: u32, slot: u32) -> u32 {
    return ((page * G + g) * PAGE + slot % PAGE) * D4;
}
