//! Metadata of one architecture, checked as it is read: an error names the key, what was expected and what was found.

use std::ops::RangeInclusive;

use crate::error::{Error, Result};
use crate::weights::{Metadata, Weights};

/// Largest sizes accepted from a file: far beyond any model, small enough that products of two never overflow.
pub(super) const LIMIT: usize = 1 << 24;

/// Keys that begin with the name of the architecture.
pub(super) struct Keys<'a> {
    pub weights: &'a Weights,
    pub architecture: &'a str,
}

impl<'a> Keys<'a> {
    /// A size from 1 to [`LIMIT`].
    pub fn size(&self, name: &str) -> Result<usize> {
        let found = self.weights.metadata().u32(&self.key(name))? as usize;
        self.expect(name, (1..=LIMIT).contains(&found), || format!("1 to {LIMIT}"), found)?;
        Ok(found)
    }

    /// As [`size`](Self::size); without the key, `default`.
    pub fn size_or(&self, name: &str, default: usize) -> Result<usize> {
        if self.contains(name) { self.size(name) } else { Ok(default) }
    }

    /// An integer of any size; without the key, `default`.
    pub fn integer_or(&self, name: &str, default: usize) -> Result<usize> {
        let found = self.weights.metadata().optional(&self.key(name), Metadata::u32)?;
        Ok(found.map_or(default, |n| n as usize))
    }

    /// A number above 0.
    pub fn positive(&self, name: &str) -> Result<f32> {
        let found = self.weights.metadata().f32(&self.key(name))?;
        let ok = found.is_finite() && found > 0.0;
        self.expect(name, ok, || "a finite number above 0".into(), found)?;
        Ok(found)
    }

    /// As [`positive`](Self::positive); without the key, `default`.
    pub fn positive_or(&self, name: &str, default: f32) -> Result<f32> {
        if self.contains(name) { self.positive(name) } else { Ok(default) }
    }

    /// A number within `range`; without the key, `default`, which must be within it too.
    pub fn within_or(&self, name: &str, range: RangeInclusive<f32>, default: f32) -> Result<f32> {
        let found = self.number_or(name, default)?;
        let expected = || format!("a number from {} to {}", range.start(), range.end());
        self.expect(name, range.contains(&found), expected, found)?;
        Ok(found)
    }

    /// Any number; without the key, `default`.
    pub fn number_or(&self, name: &str, default: f32) -> Result<f32> {
        Ok(self.weights.metadata().optional(&self.key(name), Metadata::f32)?.unwrap_or(default))
    }

    /// A string, if the key is there.
    pub fn string(&self, name: &str) -> Result<Option<&'a str>> {
        self.weights.metadata().optional(&self.key(name), Metadata::string)
    }

    pub fn contains(&self, name: &str) -> bool {
        self.weights.metadata().contains(&self.key(name))
    }

    /// An error of key `name` unless `ok`.
    pub fn expect(&self, name: &str, ok: bool, expected: impl FnOnce() -> String, found: impl ToString) -> Result<()> {
        if ok { Ok(()) } else { Err(self.error(name, expected, found)) }
    }

    /// An error of key `name`.
    pub fn error(&self, name: &str, expected: impl FnOnce() -> String, found: impl ToString) -> Error {
        Error::file(self.weights.path(), self.key(name), expected(), found)
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }
}
