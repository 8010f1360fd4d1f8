// Copies rows of keys and values that are stored in blocks, unit by unit.
const UNITS = OF_Q + OF_SCALES;  // of a row

fn unit_at(row: u32, i: u32) -> u32 {
    let head = row / PAGE;
    let j = row % PAGE;
    return select(scales_at(head, j, 0u) + i - OF_Q, quants_at(head, j, 0u) + i, i < OF_Q);
}
