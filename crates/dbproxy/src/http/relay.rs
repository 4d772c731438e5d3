//! One request and its response.

use std::rc::Rc;
use std::sync::Mutex;

use bytes::Bytes;
use http::header::{AUTHORIZATION, EXPECT, WWW_AUTHENTICATE};
use http::{HeaderMap, Request, Response, StatusCode, Version};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use super::HttpSession;
use super::backend::{HttpBackend, acquire_backend};
use super::body::{ContinueGate, HttpRequestBody, HttpResponseBody, ResponseEndGuard};
use super::cache_exchange::{self, HttpAnswer};
use super::hop;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::UsedConnection;
use nearpath_connpool::pool::NoConnection;

/// Why there is no response.
pub(super) enum ExchangeError {
    /// There was no connection to send it on.
    NoConnection(NoConnection),
    /// It broke.
    Broken(hyper::Error),
}

/// A response, the connection on which it comes, and what is dropped when it has ended.
pub(super) type HttpExchange = (
    Response<Incoming>,
    UsedConnection<HttpBackend>,
    Option<ResponseEndGuard>,
);

/// Answers one request, by the destination's response or the pool's own.
pub(super) async fn relay_request(
    guest: Rc<HttpSession>,
    mut request: Request<Incoming>,
) -> Response<HttpResponseBody> {
    let leaves = hop::wants_upgrade(request.method(), request.headers());
    let client = leaves.then(|| hyper::upgrade::on(&mut request));
    hop::strip_hop_headers(request.headers_mut(), leaves);
    let request = outgoing_request(&guest, request);
    match cache_exchange::answer_request(&guest, request).await {
        Ok(HttpAnswer::Stored(response)) => {
            response.map(|body| HttpResponseBody::Local(Full::new(body)))
        }
        Ok(HttpAnswer::Fetched(mut response, line, over, copying)) => {
            let upgraded = is_upgraded(&response, leaves);
            hop::strip_hop_headers(response.headers_mut(), upgraded);
            // What the client is told of the connection concerns its own, which speaks 1.1.
            *response.version_mut() = Version::HTTP_11;
            if let (true, Some(client)) = (upgraded, client) {
                let destination = hyper::upgrade::on(&mut response);
                let ledger = Rc::clone(&guest.context.upstream.counters);
                guest.upgraded_tunnel.replace(Some(Box::pin(tunnel_bytes(
                    ledger,
                    client,
                    destination,
                    line,
                ))));
                return response.map(|_| HttpResponseBody::Local(Full::default()));
            }
            response.map(|body| HttpResponseBody::new(body, guest, line, over, copying))
        }
        Err(failed) => error_response(&guest, &failed),
    }
}

/// Whether what follows a response is no HTTP any more.
fn is_upgraded(response: &Response<Incoming>, leaves: bool) -> bool {
    leaves
        && (response.status() == StatusCode::SWITCHING_PROTOCOLS
            || response.status().is_success() && response.extensions().get::<OnUpgrade>().is_some())
}

/// Sends a request, and once more where that cannot do anything twice.
pub(super) async fn send_request(
    guest: &HttpSession,
    request: Request<HttpRequestBody>,
) -> Result<HttpExchange, ExchangeError> {
    let (parts, body) = request.into_parts();
    let keeps = is_connection_bound(&parts.headers, AUTHORIZATION);
    let empty = body.is_end_stream();
    // What may be said twice, if the connection turns out to have been closed: a request that asks for nothing to be done (RFC 9110 section 9.2.2).
    let mut again = (empty && parts.method.is_idempotent()).then(|| parts.clone());
    let mut request = Request::from_parts(parts, body);
    loop {
        let (mut line, used) = acquire_backend(guest)
            .await
            .map_err(ExchangeError::NoConnection)?;
        if keeps {
            guest.pin_backend();
        }
        let over = hold_body(&mut request);
        match line.connection.sender.try_send_request(request).await {
            Ok(response) => {
                if is_connection_bound(response.headers(), WWW_AUTHENTICATE) {
                    guest.pin_backend();
                }
                return Ok((response, line, over));
            }
            // Not a byte of it left: anything may be sent again.
            Err(mut error) if used && error.message().is_some() => {
                request = error.take_message().expect("it was just seen");
            }
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

/// Whether the destination closed a connection before it said anything to this request.
fn is_stale_connection(error: &hyper::Error) -> bool {
    error.is_incomplete_message()
        || error.is_closed()
        || error.is_canceled()
        || std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

fn outgoing_request(guest: &HttpSession, request: Request<Incoming>) -> Request<HttpRequestBody> {
    let ledger = guest.context.upstream.counters.clone();
    request.map(|body| {
        if body.is_end_stream() {
            HttpRequestBody::Empty
        } else {
            HttpRequestBody::Body {
                body,
                gate: None,
                ledger,
            }
        }
    })
}

/// Keeps a body back until the destination asks for it, where the client wants that.
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
    let (closed, opens, over) = ContinueGate::new();
    *gate = Some(closed);
    let opens = Mutex::new(Some(opens));
    hyper::ext::on_informational(request, move |response| {
        let opens = opens
            .lock()
            .ok()
            .and_then(|mut opens| opens.take_if(|_| response.status() == StatusCode::CONTINUE));
        if let Some(opens) = opens {
            // Nobody waits any more once the body flows.
            let _ = opens.send(());
        }
    });
    Some(over)
}

/// Whether a login is to the connection instead of the request (RFC 4559).
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

/// Bytes both ways, until both have closed.
async fn tunnel_bytes(
    ledger: Rc<DestinationCounters>,
    client: OnUpgrade,
    destination: OnUpgrade,
    line: UsedConnection<HttpBackend>,
) {
    ledger.count_pin("Upgrade");
    let _place = Rc::clone(&line.connection.permit);
    drop(line);
    let Ok((client, destination)) = tokio::try_join!(client, destination) else {
        return;
    };
    let (mut client, mut destination) = (TokioIo::new(client), TokioIo::new(destination));
    // A reset is a usual way to end.
    if let Ok((sent, received)) = tokio::io::copy_bidirectional(&mut client, &mut destination).await
    {
        DestinationCounters::increase(&ledger.sent_bytes, sent);
        DestinationCounters::increase(&ledger.received_bytes, received);
    }
}

/// The pool's own answer, where the destination gave none.
fn error_response(guest: &HttpSession, failed: &ExchangeError) -> Response<HttpResponseBody> {
    let to = &guest.context.upstream.destination.key.host_port;
    let (status, text) = match failed {
        ExchangeError::NoConnection(error @ NoConnection::Exhausted { .. }) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("{error} (egress max=)\n"),
        ),
        ExchangeError::NoConnection(error) => (StatusCode::BAD_GATEWAY, format!("{error}\n")),
        ExchangeError::Broken(error) => (
            StatusCode::BAD_GATEWAY,
            format!("{to} ended the connection before it answered: {error}\n"),
        ),
    };
    let mut response = Response::new(HttpResponseBody::Local(Full::new(Bytes::from(text))));
    *response.status_mut() = status;
    response
}
