// Where keys and values in blocks of 32 dims lie: of each head of a page the q of PAGE rows, then their scales, f16, two in a word.
alias Kv = u32;  // what pages are arrays of

const BLOCKS = (D4 + 7u) / 8u;        // of a row
const OF_Q = BITS * BLOCKS;           // words of a row
const OF_SCALES = (BLOCKS + 1u) / 2u; // words of a row

// The word with dims 4i .. of slot j of a head of a page, `head` counted through all pages.
fn quants_at(head: u32, j: u32, i: u32) -> u32 {
    return head * PAGE * (OF_Q + OF_SCALES) + j * OF_Q + i * BITS / 8u;
}

fn scales_at(head: u32, j: u32, block: u32) -> u32 {
    return head * PAGE * (OF_Q + OF_SCALES) + PAGE * OF_Q + j * OF_SCALES + block / 2u;
}
