// Values that change on every step. Layout equals `Step` in src/kernel.rs.
struct Step {
    n_tokens: u32,
    n_outputs: u32,
    n_sequences: u32,
    n_tiles: u32,
    max_pages: u32,
    padding_0: u32,
    padding_1: u32,
    padding_2: u32,
}
