//! The checkpoint that tests of a real model read.

use std::path::PathBuf;

use farpast::fetch;

/// SmolLM2-135M-Instruct as GGUF: the file that `FARPAST_TEST_MODEL` names, or the one that `./test` has fetched.
pub fn test_model() -> PathBuf {
    let path = match std::env::var_os("FARPAST_TEST_MODEL") {
        Some(path) => path.into(),
        None => {
            let cache = fetch::cache_folder().expect("the folder of fetched models");
            cache.join("models").join(fetch::MODELS[0].file_name())
        }
    };
    assert!(
        path.is_file(),
        "{} is missing. Run ./test, which fetches it, or set FARPAST_TEST_MODEL to SmolLM2-135M-Instruct.Q4_1.gguf.",
        path.display()
    );
    path
}
