mod allocation;
mod formats;
mod gguf;
mod gguf_writer;
