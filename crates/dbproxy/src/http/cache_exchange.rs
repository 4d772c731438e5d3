//! Requests on their way through the cache.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::SystemTime;

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;

use super::backend::HttpBackend;
use super::body_copy::BodyCopy;
use super::cache::{CacheLookup, CacheOutcome, HttpCache, PendingFetch};
use super::exchange::{self, ExchangeError};
use super::request_body::{HttpRequestBody, ResponseEndGuard};
use super::session::HttpSession;
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::UsedConnection;

/// A response, by its source.
pub(super) enum HttpAnswer {
    /// A stored response.
    Stored(Response<Bytes>),
    /// A response of the destination.
    Fetched(
        Response<Incoming>,
        UsedConnection<HttpBackend>,
        Option<ResponseEndGuard>,
        Option<BodyCopy>,
    ),
}

/// Answers a request with a stored response or one of the destination.
pub(super) async fn exchange_cached(
    session: &HttpSession,
    request: Request<HttpRequestBody>,
) -> Result<HttpAnswer, ExchangeError> {
    // Prefetching calls this function, too, so that a prefetched response passes the cache's rules.
    let Some(cache) = &session.state.cache else {
        return exchange_uncached(session, request).await;
    };
    let (parts, body) = request.into_parts();
    let lookup = cache
        .borrow_mut()
        .look_up(&parts, body.is_end_stream(), SystemTime::now());
    match lookup {
        // The cache is borrowed for the lookup only: other clients use it while this one awaits the
        // server.
        CacheLookup::Bypass if parts.method.is_safe() => {
            exchange_uncached(session, Request::from_parts(parts, body)).await
        }
        CacheLookup::Bypass => {
            let written = resource_parts(&parts);
            let answer = exchange_uncached(session, Request::from_parts(parts, body)).await;
            cache.borrow_mut().invalidate(&written); // whatever the response: it may have run
            answer
        }
        CacheLookup::Fresh(response) => {
            DestinationCounters::increase(&session.context.upstream.counters.cache_hits, 1);
            Ok(HttpAnswer::Stored(response))
        }
        CacheLookup::Fetch(pending) => fetch_for_cache(session, cache, parts, *pending).await,
    }
}

async fn fetch_for_cache(
    session: &HttpSession,
    cache: &Rc<RefCell<HttpCache>>,
    parts: Parts,
    pending: PendingFetch,
) -> Result<HttpAnswer, ExchangeError> {
    let mut request = Request::from_parts(parts.clone(), HttpRequestBody::Empty);
    request.headers_mut().extend(pending.revalidation_headers());
    let (response, backend, response_end) = exchange::send_request(session, request).await?;
    let (head, body) = response.into_parts();
    let outcome = cache
        .borrow_mut()
        .handle_response(pending, &head, SystemTime::now());
    let body_copy = match outcome {
        CacheOutcome::Confirmed(response) => {
            DestinationCounters::increase(&session.context.upstream.counters.cache_hits, 1);
            DestinationCounters::increase(&session.context.upstream.counters.revalidated, 1);
            // The unused body is dropped before the connection is finished: hyper cannot return a
            // connection with an unread body.
            drop(body);
            session.finish_response(backend).await;
            return Ok(HttpAnswer::Stored(response));
        }
        CacheOutcome::Unmatched => {
            drop(body);
            session.finish_response(backend).await;
            return exchange_uncached(session, Request::from_parts(parts, HttpRequestBody::Empty))
                .await;
        }
        CacheOutcome::NotStored => None,
        // A length that is known to be too long spares the copy.
        CacheOutcome::Store(pending)
            if body.size_hint().lower() > pending.max_body_bytes as u64 =>
        {
            None
        }
        CacheOutcome::Store(pending) => Some(BodyCopy::new(Rc::clone(cache), pending)),
    };
    Ok(HttpAnswer::Fetched(
        Response::from_parts(head, body),
        backend,
        response_end,
        body_copy,
    ))
}

async fn exchange_uncached(
    session: &HttpSession,
    request: Request<HttpRequestBody>,
) -> Result<HttpAnswer, ExchangeError> {
    let (response, backend, response_end) = exchange::send_request(session, request).await?;
    Ok(HttpAnswer::Fetched(response, backend, response_end, None))
}

/// Returns the parts of a request that name its resource.
fn resource_parts(parts: &Parts) -> Parts {
    let mut resource = Request::new(());
    *resource.method_mut() = parts.method.clone();
    *resource.uri_mut() = parts.uri.clone();
    *resource.headers_mut() = parts.headers.clone();
    resource.into_parts().0
}
