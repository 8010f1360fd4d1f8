//! Reads the fields of a request one by one; what is left over is refused, so that nothing is ignored.

use std::ops::RangeInclusive;

use axum::http::StatusCode;
use serde_json::{Map, Value as Json};

use super::refusal::{Refusal, Result};

pub(super) struct Fields {
    map: Map<String, Json>,
    /// Before the names of fields, in refusals.
    path: String,
}

impl Fields {
    /// The fields of a request's body.
    pub fn of_body(body: &[u8]) -> Result<Self> {
        match serde_json::from_slice(body) {
            Ok(Json::Object(map)) => Ok(Self { map, path: String::new() }),
            Ok(_) => Err(Refusal::body(StatusCode::BAD_REQUEST, "the body must be a JSON object")),
            Err(e) => Err(Refusal::body(StatusCode::BAD_REQUEST, format!("the body is no JSON: {e}"))),
        }
    }

    /// The fields of an object within the request.
    pub fn of(json: Json, path: &str) -> Result<Self> {
        match json {
            Json::Object(map) => Ok(Self { map, path: format!("{path}.") }),
            _ => Err(Refusal::invalid(path, format!("{path} must be an object"))),
        }
    }

    /// A field that is there and not null.
    pub fn take(&mut self, name: &str) -> Option<Json> {
        self.map.shift_remove(name).filter(|value| !value.is_null())
    }

    pub fn wrong(&self, name: &str, expected: impl std::fmt::Display) -> Refusal {
        let param = format!("{}{name}", self.path);
        let message = format!("{param} must be {expected}");
        Refusal::invalid(param, message)
    }

    pub fn missing(&self, name: &str) -> Refusal {
        let param = format!("{}{name}", self.path);
        let message = format!("{param} is missing");
        Refusal::invalid(param, message)
    }

    fn read<T>(
        &mut self,
        name: &str,
        expected: impl std::fmt::Display,
        read: impl FnOnce(Json) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.take(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| self.wrong(name, expected))
    }

    pub fn number(&mut self, name: &str, range: RangeInclusive<f64>) -> Result<Option<f64>> {
        let expected = format!("a number from {} to {}", range.start(), range.end());
        self.read(name, expected, |value| value.as_f64().filter(|number| range.contains(number)))
    }

    pub fn integer(&mut self, name: &str, range: RangeInclusive<i64>) -> Result<Option<i64>> {
        let expected = format!("an integer from {} to {}", range.start(), range.end());
        self.read(name, expected, |value| value.as_i64().filter(|number| range.contains(number)))
    }

    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>> {
        self.read(name, "true or false", |value| value.as_bool())
    }

    pub fn string(&mut self, name: &str) -> Result<Option<String>> {
        self.read(name, "a string", |value| match value {
            Json::String(text) => Some(text),
            _ => None,
        })
    }

    pub fn array(&mut self, name: &str) -> Result<Option<Vec<Json>>> {
        self.read(name, "an array", |value| match value {
            Json::Array(items) => Some(items),
            _ => None,
        })
    }

    pub fn object(&mut self, name: &str) -> Result<Option<Map<String, Json>>> {
        self.read(name, "an object", |value| match value {
            Json::Object(map) => Some(map),
            _ => None,
        })
    }

    /// A field that may only say what is done anyway.
    pub fn only(&mut self, name: &str, allowed: &[Json]) -> Result<()> {
        match self.take(name) {
            Some(value) if !allowed.contains(&value) => {
                Err(Refusal::unsupported(format!("{}{name}", self.path), shortened(&value)))
            }
            _ => Ok(()),
        }
    }

    /// Refuses what is left.
    pub fn finish(self) -> Result<()> {
        match self.map.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => Err(Refusal::unsupported(format!("{}{name}", self.path), "this field")),
        }
    }
}

/// As much of a value as a message may hold.
fn shortened(value: &Json) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}
