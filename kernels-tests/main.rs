//! Tests of the crate.

mod model;
mod text;
