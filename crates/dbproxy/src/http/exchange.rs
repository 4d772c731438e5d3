//! An exchange of one request and its response with the destination.

use std::sync::Mutex;

use http::header::{AUTHORIZATION, EXPECT, WWW_AUTHENTICATE};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Body;
use hyper::body::Incoming;

use super::backend::HttpBackend;
use super::request_body::{ContinueGate, HttpRequestBody, ResponseEndGuard};
use super::session::HttpSession;
use nearpath_connpool::idle::UsedConnection;
use nearpath_connpool::pool::NoConnection;
use nearpath_wire::hop::headers::announce_body;

/// Reason for a missing response.
pub(super) enum ExchangeError {
    /// No connection was available.
    NoConnection(NoConnection),
    /// The connection broke.
    Broken(hyper::Error),
}

/// A response, the connection that delivers it, and the guard that is dropped after its end.
pub(super) type HttpExchange = (
    Response<Incoming>,
    UsedConnection<HttpBackend>,
    Option<ResponseEndGuard>,
);

/// Sends a request, and repeats it only where a repetition is harmless.
pub(super) async fn send_request(
    session: &HttpSession,
    request: Request<HttpRequestBody>,
) -> Result<HttpExchange, ExchangeError> {
    let (parts, body) = request.into_parts();
    let keeps = is_connection_bound(&parts.headers, AUTHORIZATION);
    let empty = body.is_end_stream();
    // A request that may be sent twice if its connection turns out to be closed (RFC 9110 section
    // 9.2.2): idempotent and without a body.
    let mut again = (empty && parts.method.is_idempotent()).then(|| parts.clone());
    let mut request = Request::from_parts(parts, body);
    announce_body(&mut request);
    loop {
        let (mut backend, used) = session
            .acquire_backend()
            .await
            .map_err(ExchangeError::NoConnection)?;
        // Pinned before the request is sent: after a failure it is unknown whether the server
        // accepted the login.
        if keeps {
            session.pin_backend();
        }
        let response_end = hold_body(&mut request);
        match backend.connection.sender.try_send_request(request).await {
            Ok(response) => {
                // The server's challenge begins a handshake on this connection, so the next request
                // has to use the same one.
                if is_connection_bound(response.headers(), WWW_AUTHENTICATE) {
                    session.pin_backend();
                }
                return Ok((response, backend, response_end));
            }
            // hyper returns the message only if no byte of it was sent, so any method may be
            // repeated.
            Err(mut error) if used && error.message().is_some() => {
                request = error.take_message().expect("the message is present");
            }
            // Only a reused connection is worth a second try. A fresh one that fails would fail
            // again.
            Err(error) => match again
                .take()
                .filter(|_| used && is_stale_connection(error.error()))
            {
                Some(parts) => request = Request::from_parts(parts, HttpRequestBody::Empty),
                None => return Err(ExchangeError::Broken(error.into_error())),
            },
        }
    }
}

/// Returns whether the destination closed a connection before it answered this request.
fn is_stale_connection(error: &hyper::Error) -> bool {
    error.is_incomplete_message()
        || error.is_closed()
        || error.is_canceled()
        || std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

/// Holds a body back until the destination asks for it, where the client wants that.
fn hold_body(request: &mut Request<HttpRequestBody>) -> Option<ResponseEndGuard> {
    let waits = request
        .headers()
        .get(EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let HttpRequestBody::Body { gate, .. } = request.body_mut() else {
        return None;
    };
    if !waits {
        return None;
    }
    let (closed, opens, response_end) = ContinueGate::new();
    *gate = Some(closed);
    // hyper needs a `Send + Sync` callback, though all runs on one thread; hence the mutex.
    let opens = Mutex::new(Some(opens));
    hyper::ext::on_informational(request, move |response| {
        let opens = opens
            .lock()
            .ok()
            .and_then(|mut opens| opens.take_if(|_| response.status() == StatusCode::CONTINUE));
        if let Some(opens) = opens {
            // The gate has already opened by timeout; the receiver is gone.
            let _ = opens.send(());
        }
    });
    Some(response_end)
}

/// Returns whether an authentication is bound to the connection instead of the request (RFC 4559).
fn is_connection_bound(headers: &HeaderMap, name: http::HeaderName) -> bool {
    let values = headers.get_all(name);
    values.iter().any(|value| {
        let word = value
            .as_bytes()
            .split(|byte| *byte == b' ')
            .next()
            .unwrap_or_default();
        word.eq_ignore_ascii_case(b"ntlm") || word.eq_ignore_ascii_case(b"negotiate")
    })
}
