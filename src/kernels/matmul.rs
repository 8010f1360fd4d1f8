//! `y[t, n] = sum_k w[n, k] * x[t, k]`, or the same added to `y`, for many tokens. Recorded by
//! [`Recorder::linear`](crate::program::Recorder::linear).

use super::matvec;
use crate::kernel::Access::{Read, ReadWrite};
use crate::kernel::{Access, Kernel};

/// See the module.
pub static MATMUL: Kernel = Kernel {
    name: "matmul",
    source: include_str!("../../shaders/matmul.wgsl"),
    bindings: &[("step", Access::Step), ("x", Read), ("w", Read), ("y", ReadWrite)],
    reference: matvec::reference,
};
