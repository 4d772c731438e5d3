//! Reads that are issued when a call of the function arrives, and the requests that they answer.

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use tokio::task::spawn_local;

use super::cache_exchange::{self, HttpAnswer};
use super::prefetched::PrefetchedResponse;
use super::request_body::HttpRequestBody;
use super::response_body::HttpResponseBody;
use super::session::HttpSession;
use nearpath_connpool::upstream::UpstreamHandle;

use crate::ClientContext;
use crate::prefetch::MAX_ANSWER_AGE;
use nearpath_connpool::counters::DestinationCounters;

/// The longest body that is kept.
const MAX_BODY_BYTES: usize = 1 << 20;
/// Headers that differ with each request and that no response depends on.
const PER_REQUEST_HEADERS: [&str; 5] = [
    "traceparent",
    "tracestate",
    "baggage",
    "x-request-id",
    "x-call-id",
];

/// Issues the declared reads: a call of the function has arrived.
pub(super) fn prefetch_reads(context: &ClientContext) {
    let session = HttpSession::open(context.clone());
    let Some(reads) = session.state.prefetch.get() else {
        return;
    };
    for read in &context.upstream.destination.egress.prefetch {
        let (function, now) = (&context.caller.function, Instant::now());
        let Some((headers, is_stable)) = reads.borrow().learned_request(function, read) else {
            continue;
        };
        let personal = [AUTHORIZATION, COOKIE]
            .iter()
            .any(|name| headers.contains_key(name));
        let (has_capacity, expired) = reads.borrow_mut().has_capacity(function, read, now);
        DestinationCounters::increase(&context.upstream.counters.prefetch_unused, expired);
        // A personal request is repeated only after two equal ones: a token that changes each time
        // would only cause load.
        if has_capacity && (is_stable || !personal) {
            let answer = spawn_local(issue_read(session.clone(), read.clone(), headers.clone()));
            reads.borrow_mut().record_issued(
                function,
                read,
                PrefetchedResponse { headers, answer },
                now,
            );
            spawn_local(expire_later(session.clone()));
        }
    }
}

/// Discards answers that no request takes in time.
async fn expire_later(session: Rc<HttpSession>) {
    tokio::time::sleep(MAX_ANSWER_AGE).await;
    if let Some(reads) = session.state.prefetch.get() {
        DestinationCounters::increase(
            &session.context.upstream.counters.prefetch_unused,
            reads.borrow_mut().expire(Instant::now()),
        );
    }
}

// No response is delivered to a client here, so each failure simply means that there is no answer.
async fn issue_read(
    session: Rc<HttpSession>,
    path: String,
    headers: HeaderMap,
) -> Option<Response<Bytes>> {
    let mut request = Request::new(HttpRequestBody::Empty);
    *request.uri_mut() = path.parse().ok()?;
    *request.headers_mut() = headers;
    let answer = tokio::time::timeout(
        MAX_ANSWER_AGE,
        cache_exchange::exchange_cached(&session, request),
    )
    .await
    .ok()?
    .ok()?;
    let response = match answer {
        HttpAnswer::Stored(response) => {
            response.map(|body| HttpResponseBody::Local(Full::new(body)))
        }
        HttpAnswer::Fetched(response, backend, response_end, body_copy) => response.map(|body| {
            HttpResponseBody::new(body, session.clone(), backend, response_end, body_copy)
        }),
    };
    let (head, body) = response.into_parts();
    let whole = tokio::time::timeout(MAX_ANSWER_AGE, Limited::new(body, MAX_BODY_BYTES).collect())
        .await
        .ok()?
        .ok()?;
    // A server error would be repeated to a caller that might not have met it. `Response<Bytes>`
    // cannot carry trailers.
    let fits = !head.status.is_server_error() && whole.trailers().is_none();
    fits.then(|| Response::from_parts(head, whole.to_bytes()))
}

/// Takes the prefetched response to an equal request; waits for it when it is in flight. An unsafe
/// request discards all earlier reads.
pub(super) async fn take_prefetched(
    session: &HttpSession,
    request: &Parts,
    empty: bool,
) -> Option<Response<Bytes>> {
    let reads = session.state.prefetch.get()?;
    let ClientContext {
        caller,
        upstream:
            UpstreamHandle {
                destination,
                counters,
                ..
            },
        ..
    } = &session.context;
    // Any read may depend on the write: HTTP does not say which ones do.
    if !request.method.is_safe() {
        DestinationCounters::increase(
            &counters.prefetch_unused,
            reads.borrow_mut().invalidate(|_| true),
        );
        return None;
    }
    let path = request
        .uri
        .path_and_query()
        .filter(|_| request.method == Method::GET && empty)?
        .as_str();
    let read = destination
        .egress
        .prefetch
        .iter()
        .find(|read| *read == path)?;
    let headers = stable_headers(&request.headers);
    let is_same = |issued: &PrefetchedResponse| issued.headers == headers;
    let (found, expired) =
        reads
            .borrow_mut()
            .take_answer(&caller.function, read, Instant::now(), is_same);
    DestinationCounters::increase(&counters.prefetch_unused, expired);
    // Learned from each request, so that the next call issues the latest form.
    reads.borrow_mut().learn(&caller.function, read, headers);
    let answer = found?.answer.await.ok().flatten();
    let counter = if answer.is_some() {
        &counters.prefetch_used
    } else {
        &counters.prefetch_unused
    };
    DestinationCounters::increase(counter, 1);
    answer
}

/// Discards all prefetched responses: the server's state may have changed.
pub(super) fn invalidate(session: &HttpSession) {
    if let Some(reads) = session.state.prefetch.get() {
        DestinationCounters::increase(
            &session.context.upstream.counters.prefetch_unused,
            reads.borrow_mut().invalidate(|_| true),
        );
    }
}

/// Returns the headers that distinguish a request from others of its kind.
fn stable_headers(headers: &HeaderMap) -> HeaderMap {
    let lines = headers
        .iter()
        .filter(|(name, _): &(&HeaderName, _)| !PER_REQUEST_HEADERS.contains(&name.as_str()));
    lines
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
