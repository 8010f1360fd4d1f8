//! LLM inference on any GPU.

pub mod attention;
pub mod chat;
pub mod engine;
pub mod error;
pub mod fetch;
pub mod format;
pub mod gpu;
pub mod kernel;
pub mod kernels;
pub mod kv;
pub mod memory;
pub mod models;
pub mod program;
pub mod sampler;
pub mod session;
pub mod text;
pub mod weights;

pub use error::{Error, Result};
