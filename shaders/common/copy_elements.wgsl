// Copies rows of keys and values that are stored one by one, unit by unit.
const UNITS = D4;  // of a row

fn unit_at(row: u32, i: u32) -> u32 {
    return row * D4 + i;
}
