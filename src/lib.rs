//! LLM inference on any GPU.

pub mod error;
pub mod format;
pub mod memory;
pub mod text;
pub mod weights;

pub use error::{Error, Result};
