//! The checkpoints that tests of real models read.

use std::path::PathBuf;

use farpast::fetch::{self, Packaged};

/// SmolLM2-135M-Instruct as GGUF.
pub fn test_model() -> PathBuf {
    checkpoint("smollm2")
}

/// A packaged model of [`fetch::MODELS`], from the cache.
pub fn checkpoint(name: &str) -> PathBuf {
    let model = Packaged::named(name).expect("a packaged model");
    let path = fetch::cache_folder().expect("the folder of fetched models").join("models").join(model.file);
    assert!(
        path.is_file(),
        "{} is missing: ./test fetches it, and so does cargo run --release --example fetch -- {name}",
        path.display()
    );
    path
}
