// Rows of weights as they lie in memory: units of 16 bytes, those of 8 rows alternating, so that the loads of neighbouring
// invocations for neighbouring rows are next to each other. A format says what the units of a row hold and gives `group`, what
// is loaded of a group of 32 weights; `scale`, its (d, m), weight = d * q + m; and `quants`, the q of weights 4j .. and 16 + 4j ..
// Where q are int8, perhaps times a factor for each half of the group, it also gives them as `packed`, and the factors as `halves`.
override UNITS: u32;  // of a row

// Where row `row` begins.
fn row_base(row: u32) -> u32 {
    return row / 8u * 8u * UNITS + row % 8u;
}

// Unit i of the row, or of the group, that begins at `base`.
fn unit_at(base: u32, i: u32) -> vec4<u32> {
    return w[base + 8u * i];
}

// Word i of the units from `first` on.
fn word_at(base: u32, first: u32, i: u32) -> u32 {
    return w[base + 8u * (first + i / 4u)][i % 4u];
}

// Number i of the f16 in the units from `first` on.
fn half_at(base: u32, first: u32, i: u32) -> f32 {
    return unpack2x16float(word_at(base, first, i / 2u) >> (16u * (i % 2u))).x;
}

// Four bytes below 128, each less n.
fn less(bytes: u32, n: u32) -> u32 {
    return ((bytes | 0x80808080u) - n * 0x01010101u) ^ 0x80808080u;
}
