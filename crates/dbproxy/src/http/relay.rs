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

use super::Guest;
use super::backend::{Line, line};
use super::body::{Download, Gate, Over, Upload};
use super::cached::{self, Heard};
use super::hop;
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::idle::Kept;
use nearpath_connpool::pool::NoConnection;

/// Why there is no response.
pub(super) enum Failed {
    /// There was no connection to send it on.
    NoConnection(NoConnection),
    /// It broke.
    Broken(hyper::Error),
}

/// A response, the connection on which it comes, and what is dropped when it has ended.
pub(super) type Answered = (Response<Incoming>, Kept<Line>, Option<Over>);

/// Answers one request, by the destination's response or the pool's own.
pub(super) async fn answer(guest: Rc<Guest>, mut request: Request<Incoming>) -> Response<Download> {
    let leaves = hop::upgrades(request.method(), request.headers());
    let client = leaves.then(|| hyper::upgrade::on(&mut request));
    hop::strip(request.headers_mut(), leaves);
    let request = outgoing(&guest, request);
    match cached::answer(&guest, request).await {
        Ok(Heard::Kept(response)) => response.map(|body| Download::Own(Full::new(body))),
        Ok(Heard::From(mut response, line, over, copying)) => {
            let upgraded = is_upgraded(&response, leaves);
            hop::strip(response.headers_mut(), upgraded);
            // What the client is told of the connection concerns its own, which speaks 1.1.
            *response.version_mut() = Version::HTTP_11;
            if let (true, Some(client)) = (upgraded, client) {
                let destination = hyper::upgrade::on(&mut response);
                let ledger = Rc::clone(&guest.visit.upstream.ledger);
                guest.left.replace(Some(Box::pin(tunnel(ledger, client, destination, line))));
                return response.map(|_| Download::Own(Full::default()));
            }
            response.map(|body| Download::new(body, guest, line, over, copying))
        }
        Err(failed) => refusal(&guest, &failed),
    }
}

/// Whether what follows a response is no HTTP any more.
fn is_upgraded(response: &Response<Incoming>, leaves: bool) -> bool {
    leaves
        && (response.status() == StatusCode::SWITCHING_PROTOCOLS
            || response.status().is_success() && response.extensions().get::<OnUpgrade>().is_some())
}

/// Sends a request, and once more where that cannot do anything twice.
pub(super) async fn exchange(guest: &Guest, request: Request<Upload>) -> Result<Answered, Failed> {
    let (parts, body) = request.into_parts();
    let keeps = binds(&parts.headers, AUTHORIZATION);
    let empty = body.is_end_stream();
    // What may be said twice, if the connection turns out to have been closed: a request that asks for nothing to be done (RFC 9110 section 9.2.2).
    let mut again = (empty && parts.method.is_idempotent()).then(|| parts.clone());
    let mut request = Request::from_parts(parts, body);
    loop {
        let (mut line, used) = line(guest).await.map_err(Failed::NoConnection)?;
        if keeps {
            guest.keeps();
        }
        let over = wait_to_be_asked(&mut request);
        match line.item.sender.try_send_request(request).await {
            Ok(response) => {
                if binds(response.headers(), WWW_AUTHENTICATE) {
                    guest.keeps();
                }
                return Ok((response, line, over));
            }
            // Not a byte of it left: anything may be sent again.
            Err(mut error) if used && error.message().is_some() => {
                request = error.take_message().expect("it was just seen");
            }
            Err(error) => match again.take().filter(|_| used && stale(error.error())) {
                Some(parts) => request = Request::from_parts(parts, Upload::Empty),
                None => return Err(Failed::Broken(error.into_error())),
            },
        }
    }
}

/// Whether the destination closed a connection before it said anything to this request.
fn stale(error: &hyper::Error) -> bool {
    error.is_incomplete_message()
        || error.is_closed()
        || error.is_canceled()
        || std::error::Error::source(error).is_some_and(|source| source.is::<std::io::Error>())
}

fn outgoing(guest: &Guest, request: Request<Incoming>) -> Request<Upload> {
    let ledger = guest.visit.upstream.ledger.clone();
    request.map(|body| if body.is_end_stream() { Upload::Empty } else { Upload::Body { body, gate: None, ledger } })
}

/// Keeps a body back until the destination asks for it, where the client wants that.
fn wait_to_be_asked(request: &mut Request<Upload>) -> Option<Over> {
    let waits =
        request.headers().get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let Upload::Body { gate, .. } = request.body_mut() else { return None };
    if !waits {
        return None;
    }
    let (closed, opens, over) = Gate::new();
    *gate = Some(closed);
    let opens = Mutex::new(Some(opens));
    hyper::ext::on_informational(request, move |response| {
        let opens =
            opens.lock().ok().and_then(|mut opens| opens.take_if(|_| response.status() == StatusCode::CONTINUE));
        if let Some(opens) = opens {
            // Nobody waits any more once the body flows.
            let _ = opens.send(());
        }
    });
    Some(over)
}

/// Whether a login is to the connection instead of the request (RFC 4559).
fn binds(headers: &HeaderMap, name: http::HeaderName) -> bool {
    let values = headers.get_all(name);
    values.iter().any(|value| {
        let word = value.as_bytes().split(|byte| *byte == b' ').next().unwrap_or_default();
        word.eq_ignore_ascii_case(b"ntlm") || word.eq_ignore_ascii_case(b"negotiate")
    })
}

/// Bytes both ways, until both have closed.
async fn tunnel(ledger: Rc<Ledger>, client: OnUpgrade, destination: OnUpgrade, line: Kept<Line>) {
    ledger.pinned("Upgrade");
    let _place = Rc::clone(&line.item.place);
    drop(line);
    let Ok((client, destination)) = tokio::try_join!(client, destination) else { return };
    let (mut client, mut destination) = (TokioIo::new(client), TokioIo::new(destination));
    // A reset is a usual way to end.
    if let Ok((sent, received)) = tokio::io::copy_bidirectional(&mut client, &mut destination).await {
        Ledger::count(&ledger.sent, sent);
        Ledger::count(&ledger.received, received);
    }
}

/// The pool's own answer, where the destination gave none.
fn refusal(guest: &Guest, failed: &Failed) -> Response<Download> {
    let to = &guest.visit.upstream.destination.key.to;
    let (status, text) = match failed {
        Failed::NoConnection(error @ NoConnection::Exhausted { .. }) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("{error} (egress max=)\n"))
        }
        Failed::NoConnection(error) => (StatusCode::BAD_GATEWAY, format!("{error}\n")),
        Failed::Broken(error) => {
            (StatusCode::BAD_GATEWAY, format!("{to} ended the connection before it answered: {error}\n"))
        }
    };
    let mut response = Response::new(Download::Own(Full::new(Bytes::from(text))));
    *response.status_mut() = status;
    response
}
