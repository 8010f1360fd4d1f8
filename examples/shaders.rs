//! Writes every assembled shader of the cases, the toy models, the packaged models and the device's peaks into a folder, for scripts/tint.mjs.
//!
//! usage: cargo run --release --example shaders -- FOLDER

use std::path::PathBuf;

use farpast::bench::Peak;

#[allow(dead_code)]
#[path = "../kernels-tests/cases.rs"]
mod cases;
#[allow(dead_code)]
#[path = "../kernels-tests/gguf_writer.rs"]
mod gguf_writer;
#[allow(dead_code)]
#[path = "../kernels-tests/model.rs"]
mod model;
#[path = "../kernels-tests/toy.rs"]
mod toy;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = PathBuf::from(std::env::args().nth(1).ok_or("usage: shaders FOLDER")?);
    std::fs::create_dir_all(&folder)?;
    let mut count = 0;
    let programs = toy::programs().into_iter().chain([Peak::copy(1).program, Peak::fma(1, 1).program]);
    for dispatch in programs.flat_map(|p| p.dispatches) {
        let file = folder.join(format!("{}-{count}.wgsl", dispatch.kernel.name));
        std::fs::write(&file, dispatch.kernel.wgsl(&dispatch.spec))?;
        count += 1;
    }
    println!("{count} shaders in {}", folder.display());
    Ok(())
}
