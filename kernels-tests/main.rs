//! Tests of the crate.

mod allocation;
mod formats;
mod gguf;
mod gguf_writer;
mod model;
mod text;
