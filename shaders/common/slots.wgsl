// The row of slot `slot` of page `page`, head `g`, counted through all pages and heads.
fn row_at(page: u32, g: u32, slot: u32) -> u32 {
    return (page * G + g) * PAGE + slot % PAGE;
}
