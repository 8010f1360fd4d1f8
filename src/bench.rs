//! What a device can do at most, and how long kernels take on it beside that.

mod kernels;
mod peaks;

pub use kernels::{Case, SHAPES, Shape, cases};
pub use peaks::{Peak, Peaks};
