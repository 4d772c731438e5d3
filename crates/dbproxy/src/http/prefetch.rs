//! Reads that are issued when a call of the function arrives, and requests that are answered with them.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use http::header::{AUTHORIZATION, COOKIE, HeaderName};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use tokio::task::{JoinHandle, spawn_local};

use super::body::{HttpRequestBody, HttpResponseBody};
use super::cache_exchange::{self, HttpAnswer};
use super::{HttpSession, open_session};
use nearpath_connpool::upstream::UpstreamHandle;

use crate::ClientContext;
use crate::prefetch::{MAX_ANSWER_AGE, PrefetchCache};
use nearpath_connpool::counters::DestinationCounters;

/// Longest body that is held.
const MAX_BODY_BYTES: usize = 1 << 20;
/// What a request says of itself alone: it is another one each time, and no answer depends on it.
const PER_REQUEST_HEADERS: [&str; 5] = [
    "traceparent",
    "tracestate",
    "baggage",
    "x-request-id",
    "x-call-id",
];

/// Reads of one destination.
pub(super) type HttpPrefetch = RefCell<PrefetchCache<HeaderMap, PrefetchedResponse>>;

/// A read that is under way or done.
#[derive(Debug)]
pub(super) struct PrefetchedResponse {
    headers: HeaderMap,
    answer: JoinHandle<Option<Response<Bytes>>>,
}

/// A call of the function has arrived.
pub fn prefetch_reads(visit: &ClientContext) {
    let guest = open_session(visit.clone());
    let Some(reads) = guest.state.prefetch.get() else {
        return;
    };
    for read in &visit.upstream.destination.egress.prefetch {
        let (function, now) = (&visit.caller.function, Instant::now());
        let Some((headers, steady)) = reads.borrow().learned_request(function, read) else {
            continue;
        };
        let personal = [AUTHORIZATION, COOKIE]
            .iter()
            .any(|name| headers.contains_key(name));
        let (room, old) = reads.borrow_mut().has_capacity(function, read, now);
        DestinationCounters::increase(&visit.upstream.counters.prefetch_unused, old);
        if room && (steady || !personal) {
            let answer = spawn_local(issue_read(guest.clone(), read.clone(), headers.clone()));
            reads.borrow_mut().record_issued(
                function,
                read,
                PrefetchedResponse { headers, answer },
                now,
            );
            spawn_local(expire_later(guest.clone()));
        }
    }
}

/// Whoever does not come in time is not waited for.
async fn expire_later(guest: Rc<HttpSession>) {
    tokio::time::sleep(MAX_ANSWER_AGE).await;
    if let Some(reads) = guest.state.prefetch.get() {
        DestinationCounters::increase(
            &guest.context.upstream.counters.prefetch_unused,
            reads.borrow_mut().expire(Instant::now()),
        );
    }
}

async fn issue_read(
    guest: Rc<HttpSession>,
    path: String,
    headers: HeaderMap,
) -> Option<Response<Bytes>> {
    let mut request = Request::new(HttpRequestBody::Empty);
    *request.uri_mut() = path.parse().ok()?;
    *request.headers_mut() = headers;
    let heard = tokio::time::timeout(
        MAX_ANSWER_AGE,
        cache_exchange::exchange_cached(&guest, request),
    )
    .await
    .ok()?
    .ok()?;
    let response = match heard {
        HttpAnswer::Stored(response) => {
            response.map(|body| HttpResponseBody::Local(Full::new(body)))
        }
        HttpAnswer::Fetched(response, line, over, copying) => {
            response.map(|body| HttpResponseBody::new(body, guest.clone(), line, over, copying))
        }
    };
    let (head, body) = response.into_parts();
    let whole = tokio::time::timeout(MAX_ANSWER_AGE, Limited::new(body, MAX_BODY_BYTES).collect())
        .await
        .ok()?
        .ok()?;
    let fits = !head.status.is_server_error() && whole.trailers().is_none();
    fits.then(|| Response::from_parts(head, whole.to_bytes()))
}

/// The answer that was asked for ahead, if there is one to the very same request; waits for it when it is under way. What may change something ends what
/// was read before.
pub(super) async fn take_prefetched(
    guest: &HttpSession,
    request: &Parts,
    empty: bool,
) -> Option<Response<Bytes>> {
    let reads = guest.state.prefetch.get()?;
    let ClientContext {
        caller,
        upstream:
            UpstreamHandle {
                destination,
                counters: ledger,
                ..
            },
        ..
    } = &guest.context;
    if !request.method.is_safe() {
        DestinationCounters::increase(
            &ledger.prefetch_unused,
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
    let (found, old) =
        reads
            .borrow_mut()
            .take_answer(&caller.function, read, Instant::now(), is_same);
    DestinationCounters::increase(&ledger.prefetch_unused, old);
    reads.borrow_mut().learn(&caller.function, read, headers);
    let answer = found?.answer.await.ok().flatten();
    let counter = if answer.is_some() {
        &ledger.prefetch_used
    } else {
        &ledger.prefetch_unused
    };
    DestinationCounters::increase(counter, 1);
    answer
}

/// Something may have been changed by now.
pub(super) fn invalidate(guest: &HttpSession) {
    if let Some(reads) = guest.state.prefetch.get() {
        DestinationCounters::increase(
            &guest.context.upstream.counters.prefetch_unused,
            reads.borrow_mut().invalidate(|_| true),
        );
    }
}

/// What makes a request this one, and not another of its kind.
fn stable_headers(headers: &HeaderMap) -> HeaderMap {
    let lines = headers
        .iter()
        .filter(|(name, _): &(&HeaderName, _)| !PER_REQUEST_HEADERS.contains(&name.as_str()));
    lines
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}
