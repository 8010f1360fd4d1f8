//! Errors in the form of OpenAI's API.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value as Json, json};

use crate::error::Error;

/// Why a request is not answered.
#[derive(Debug)]
pub(super) struct Refusal {
    pub status: StatusCode,
    kind: &'static str,
    message: String,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
}

pub(super) type Result<T> = std::result::Result<T, Refusal>;

impl Refusal {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind, message: message.into(), param: None, code: None }
    }

    /// A request that is wrong in `param`.
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        let refusal = Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message);
        Self { param: Some(param.into()), ..refusal }
    }

    /// Something that other servers may do.
    pub fn unsupported(param: impl Into<String>, what: impl std::fmt::Display) -> Self {
        let param = param.into();
        let message = format!("{param}: {what} is not supported");
        Self { code: Some("unsupported_parameter"), ..Self::invalid(param, message) }
    }

    /// A request without a body that could be read.
    pub fn body(status: StatusCode, message: impl Into<String>) -> Self {
        Self::new(status, "invalid_request_error", message)
    }

    pub fn no_such_model(name: &str) -> Self {
        let refusal = Self::invalid("model", format!("there is no model {name:?} here"));
        Self { status: StatusCode::NOT_FOUND, code: Some("model_not_found"), ..refusal }
    }

    pub fn unauthorized() -> Self {
        let message = "a valid API key is needed, as `Authorization: Bearer KEY`";
        let refusal = Self::new(StatusCode::UNAUTHORIZED, "invalid_request_error", message);
        Self { code: Some("invalid_api_key"), ..refusal }
    }

    pub fn overloaded(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
    }

    /// What computing a request, whose tokens come from `param`, failed with.
    pub fn of(e: &Error, param: &str) -> Self {
        match e {
            Error::ContextFull { .. } => {
                Self { code: Some("context_length_exceeded"), ..Self::invalid(param, e.to_string()) }
            }
            Error::Request { .. } | Error::Chat(_) | Error::Template(_) | Error::Tokenizer(_) => {
                Self::invalid(param, e.to_string())
            }
            // The engine is loaded again.
            _ => Self::overloaded(e.to_string()),
        }
    }

    pub fn json(&self) -> Json {
        let Self { message, kind, param, code, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.json());
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A response of JSON.
pub(super) fn json_response(status: StatusCode, json: &Json) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], json.to_string()).into_response()
}
