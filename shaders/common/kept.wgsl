// Which queries are kept: of each 2 STRIDE positions, one head's for the metric of trees; half of that later, all R heads', which widths
// are tried with. Each has 32 of the items of a page: 16 in the half of the keys, 16 in that of the values.
override POINTS: u32;  // positions of each kind
override STRIDE: u32;

const OF_TRIALS = POINTS;  // their first item

fn is_kept(position: u32) -> bool {
    return position % STRIDE == 0u;
}

fn is_of_trials(position: u32) -> bool {
    return position / STRIDE % 2u == 1u;
}

// The place of the oldest of its kind.
fn turn_of(position: u32) -> u32 {
    return position / (2u * STRIDE) % POINTS;
}
