// Values that change on every step. Layout equals `Step` in src/kernel.rs.
struct Step {
    n_tokens: u32,
    n_outputs: u32,
    n_sequences: u32,
    n_tiles: u32,
    max_pages: u32,
    rows: u32,
    segment: u32,
    zero: u32,  // loops that begin here stay loops: drivers take long to compile them unrolled
    n_penalized: u32,
    n_logprobs: u32,
    first_id: u32,
}
