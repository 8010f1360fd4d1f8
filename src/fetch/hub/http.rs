//! GET requests, each on a thread of its own, so that waiting for one can be broken off at once.

use std::io::{self, Read};
use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ureq::config::RedirectAuthHeaders;
use ureq::http::{Response, header};

/// Sends requests to one server and to where it redirects them.
pub(super) struct Client {
    agent: ureq::Agent,
    /// Sent to the server itself alone, not to where it redirects.
    token: Option<String>,
}

/// What a server answered, and the bytes to come.
pub(super) struct Answer {
    /// Position of the first byte in the whole file.
    pub(super) start: u64,
    pub(super) bytes: Receiver<Result<Vec<u8>, Failure>>,
}

/// Why there is no answer, or not all of it.
pub(super) enum Failure {
    /// The caller broke off.
    Interrupted,
    /// No connection, one that broke off or stood still, or a server in trouble: it may work later.
    Unreachable(String),
    /// The server's status and its word for the reason, such as `GatedRepo`.
    Refused(u16, String),
    /// What came is not what was announced.
    Wrong(String),
    /// It cannot be kept.
    Disk(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Disk(error)
    }
}

/// Between two looks at whether to go on.
const POLL: Duration = Duration::from_millis(100);
/// Bytes of one message; four of them may wait.
const CHUNK: usize = 256 << 10;

impl Client {
    /// `timeout` bounds the wait for a connection, for an answer, and for each next byte.
    pub(super) fn new(https: bool, token: Option<String>, timeout: Duration) -> Client {
        let config = ureq::Agent::config_builder()
            .https_only(https)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .http_status_as_error(false)
            .timeout_resolve(Some(timeout / 2))
            .timeout_connect(Some(timeout / 2))
            .timeout_recv_response(Some(timeout))
            .timeout_per_read(Some(timeout))
            .user_agent(concat!("farpast/", env!("CARGO_PKG_VERSION")))
            // Compressed bytes could not be counted.
            .accept_encoding("identity")
            .build();
        Client { agent: config.into(), token }
    }

    /// The file at `url` from byte `start` on, or from 0 if the server will have it so.
    pub(super) fn get(&self, url: &str, start: u64, go_on: impl FnMut() -> ControlFlow<()>) -> Result<Answer, Failure> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if start > 0 {
            request = request.header(header::RANGE, format!("bytes={start}-"));
        }
        let (head, heads) = sync_channel(1);
        let (sender, bytes) = sync_channel(4);
        // Not joined: when nobody listens any more it ends with the next byte or at its time-out.
        let spawned = thread::Builder::new().name("download".into()).spawn(move || match request.call() {
            Ok(response) => {
                let start = accepted(&response);
                let go_on = start.is_ok();
                if head.send(start).is_ok() && go_on {
                    pass_on(response.into_body().into_reader(), &sender);
                }
            }
            Err(e) => drop(head.send(Err(Failure::Unreachable(e.to_string())))),
        });
        spawned.map_err(|e| Failure::Unreachable(e.to_string()))?;
        let start = next(&heads, go_on)?.unwrap_or(Err(Failure::Unreachable("the download broke down".into())))?;
        Ok(Answer { start, bytes })
    }
}

/// What comes next from another thread, `None` if nothing will.
pub(super) fn next<T>(from: &Receiver<T>, mut go_on: impl FnMut() -> ControlFlow<()>) -> Result<Option<T>, Failure> {
    loop {
        match from.recv_timeout(POLL) {
            Ok(it) => return Ok(Some(it)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) if go_on().is_break() => return Err(Failure::Interrupted),
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

/// Position of the answer's first byte.
fn accepted(response: &Response<ureq::Body>) -> Result<u64, Failure> {
    let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    match response.status().as_u16() {
        200 => Ok(0),
        206 => {
            let range = text("content-range");
            let start = range.strip_prefix("bytes ").and_then(|range| range.split('-').next()?.parse().ok());
            start.ok_or_else(|| Failure::Unreachable(format!("Content-Range: expected bytes, found {range:?}")))
        }
        status @ 500.. => Err(Failure::Unreachable(format!("the server answered {status}"))),
        status => Err(Failure::Refused(status, text("x-error-code").into())),
    }
}

fn pass_on(mut body: impl Read, to: &SyncSender<Result<Vec<u8>, Failure>>) {
    loop {
        let mut chunk = vec![0; CHUNK];
        let message = match body.read(&mut chunk) {
            Ok(0) => return,
            Ok(n) => {
                chunk.truncate(n);
                Ok(chunk)
            }
            Err(e) => Err(Failure::Unreachable(e.to_string())),
        };
        let last = message.is_err();
        if to.send(message).is_err() || last {
            return;
        }
    }
}
