//! LLM inference on any GPU: WGSL kernels, a thin orchestrator on wgpu, a CPU reference that defines every kernel.
//!
//! # The path of a token
//!
//! Once, at load: [`Weights::open`](weights::Weights::open) maps a checkpoint; a [model](models) declares its tensors in a
//! [`Memory`](memory::Memory) and records its forward pass, kernel by [kernel](kernels), as a [`Program`](program::Program);
//! [`Gpu`](gpu::Gpu) allocates, uploads and prepares it.
//!
//! On every step: [`Engine::step`](engine::Engine::step) takes a share of each [`Session`](session::Session)'s pending tokens;
//! their [page tables](kv::PageTable) grow; tokens, positions and the page lists that [`Attention`](attention::Attention) writes go
//! to the device with a [`Step`](kernel::Step); the program is replayed; [`sample`](sampler) draws the next ids, and only they
//! come back. Text goes in and out through a [`Tokenizer`](text::Tokenizer) and a [`ChatTemplate`](text::ChatTemplate).

#![warn(missing_docs)]

pub mod agent;
pub mod attention;
pub mod bench;
mod cache;
pub mod chat;
#[cfg(feature = "cli")]
pub mod cli;
pub mod constrain;
pub mod engine;
pub mod error;
pub mod eval;
pub mod fetch;
pub mod format;
pub mod gpu;
pub mod kernel;
pub mod kernels;
pub mod kv;
#[cfg(feature = "mcp")]
pub mod mcp;
pub mod memory;
pub mod models;
pub mod prefix;
pub mod program;
pub mod sampler;
pub mod scheduler;
#[cfg(feature = "server")]
pub mod server;
pub mod session;
pub mod speculation;
pub mod text;
pub mod weights;

pub use error::{Error, Result};
