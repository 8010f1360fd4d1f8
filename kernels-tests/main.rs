//! Tests of the crate.

mod allocation;
mod chat;
mod diverge;
mod fetch;
mod formats;
mod gguf;
mod gguf_writer;
mod model;
mod smollm2;
mod text;
mod toy_chat;
