//! The one public error type.

use std::path::{Path, PathBuf};

/// What went wrong, naming the file, tensor, field, kernel or device with what was expected and what was found.
///
/// A wrong shape while a model is being recorded is a bug of that model and panics instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "each message names the fields")]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// A file is not what it claims to be, or holds what is not supported.
    #[error("{}: {what}: expected {expected}, found {found}", path.display())]
    File { path: PathBuf, what: String, expected: String, found: String },
    /// A tensor the model needs is absent from the checkpoint or has other dimensions or an unknown format.
    #[error("{}: tensor {name}: expected {expected}, found {found}", path.display())]
    Tensor { path: PathBuf, name: String, expected: String, found: String },
    /// A chat template failed to parse or to render, or exceeded its limits.
    #[error("chat template: {0}")]
    Template(String),
    /// The chat template refuses the messages, in its own words: such as that roles must alternate. Messages are never
    /// rearranged to please it.
    #[error("the model's chat template refuses the chat: {0}")]
    Chat(String),
    /// The tokenizer could not be built or text could not be tokenized.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// No adapter satisfies the request.
    #[error("no such device: {wanted}; found: {found}")]
    NoDevice { wanted: String, found: String },
    /// The device rejected a shader, pipeline or buffer, or a dispatch.
    #[error("device {device}: {what}")]
    Device { device: String, what: String },
    /// The device disappeared or stopped answering; nothing on it can be used again.
    #[error("device {device} was lost: {why}")]
    DeviceLost { device: String, why: String },
    /// The device has no memory for a buffer.
    #[error("device {device}: out of memory for {what}: {bytes} bytes")]
    OutOfMemory { device: String, what: String, bytes: u64 },
    /// The model does not fit the memory that is available, or one of its tensors no binding. Nothing has been allocated.
    /// `fitting`: the longest context that would fit, a multiple of 16; `None` when not even that of 16 does.
    #[error("device {device}: {what} does not fit: {needed} bytes needed, {available} available; {}", or_with(fitting))]
    DoesNotFit { device: String, what: String, needed: u64, available: u64, fitting: Option<usize> },
    /// No free page is left in the KV pool. Nothing of the step has run.
    #[error("KV cache is full: {needed} more pages needed, {free} free")]
    OutOfPages { needed: usize, free: usize },
    /// As many requests wait as may. Later there may be room.
    #[error("too many requests: {limit} wait already")]
    Busy { limit: usize },
    /// A sequence would grow beyond the context length.
    #[error("context is full: {tokens} tokens, {context} fit")]
    ContextFull { tokens: usize, context: usize },
    /// A model could not be fetched. Of a packaged one nothing is left in the folder; a download from the hub goes on where it
    /// broke off.
    #[error("{what} cannot be fetched into {}: {why}; {remedy}", folder.display())]
    Fetch { what: String, folder: PathBuf, why: String, remedy: String },
    /// An MCP server does not start, or does not do what it should.
    #[error("MCP server {server}: {why}")]
    Mcp { server: String, why: String },
    /// A request contradicts itself or the model.
    #[error("{what}: expected {expected}, found {found}")]
    Request { what: String, expected: String, found: String },
}

/// `Result` with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { path: path.into(), source }
    }

    pub(crate) fn file(path: &Path, what: impl Into<String>, expected: impl ToString, found: impl ToString) -> Error {
        Error::File { path: path.into(), what: what.into(), expected: expected.to_string(), found: found.to_string() }
    }

    pub(crate) fn request(what: impl Into<String>, expected: impl ToString, found: impl ToString) -> Error {
        Error::Request { what: what.into(), expected: expected.to_string(), found: found.to_string() }
    }
}

fn or_with(fitting: &Option<usize>) -> String {
    match fitting {
        Some(context) => format!("a context of {context} would fit"),
        None => "no context would fit".into(),
    }
}
