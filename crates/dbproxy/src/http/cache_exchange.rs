//! Requests on their way through the cache, if there is one.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;

use super::HttpSession;
use super::backend::HttpBackend;
use super::body::{HttpRequestBody, ResponseEndGuard};
use super::cache::{CacheLookup, CacheOutcome as Word, HttpCache, PendingFetch, PendingStore};
use super::prefetch;
use super::relay::{self, ExchangeError};
use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::idle::UsedConnection;

/// Where the answer to a request comes from.
pub(super) enum HttpAnswer {
    /// From what was kept.
    Stored(Response<Bytes>),
    /// From the destination.
    Fetched(
        Response<Incoming>,
        UsedConnection<HttpBackend>,
        Option<ResponseEndGuard>,
        Option<BodyCopy>,
    ),
}

/// A body that passes by, and of which the cache gets a copy.
pub(super) struct BodyCopy {
    cache: Rc<RefCell<HttpCache>>,
    pending: Box<PendingStore>,
    body: BytesMut,
}

impl BodyCopy {
    /// One more piece. A body that is too long, or has trailers, is not kept.
    pub(super) fn push_frame(mut self, frame: &Frame<Bytes>) -> Option<Self> {
        let data = frame.data_ref()?;
        self.body.extend_from_slice(data);
        (self.body.len() <= self.pending.max_body_bytes).then_some(self)
    }

    /// That was all of it.
    pub(super) fn finish(self) {
        self.cache
            .borrow_mut()
            .store(*self.pending, self.body.freeze(), SystemTime::now());
    }
}

/// Answers a request with what was asked ahead, or from the cache, or has the destination do it.
pub(super) async fn answer_request(
    guest: &HttpSession,
    request: Request<HttpRequestBody>,
) -> Result<HttpAnswer, ExchangeError> {
    let (parts, body) = request.into_parts();
    if let Some(response) = prefetch::take_prefetched(guest, &parts, body.is_end_stream()).await {
        return Ok(HttpAnswer::Stored(response));
    }
    let writes = !parts.method.is_safe();
    let heard = exchange_cached(guest, Request::from_parts(parts, body)).await;
    if writes {
        prefetch::invalidate(guest); // what was read meanwhile may be older than that
    }
    heard
}

/// Answers a request from the cache, or has the destination do it.
pub(super) async fn exchange_cached(
    guest: &HttpSession,
    request: Request<HttpRequestBody>,
) -> Result<HttpAnswer, ExchangeError> {
    let Some(cache) = &guest.state.cache else {
        return exchange_uncached(guest, request).await;
    };
    let (parts, body) = request.into_parts();
    let look = cache
        .borrow_mut()
        .look_up(&parts, body.is_end_stream(), SystemTime::now());
    match look {
        CacheLookup::Bypass if parts.method.is_safe() => {
            exchange_uncached(guest, Request::from_parts(parts, body)).await
        }
        CacheLookup::Bypass => {
            let written = resource_parts(&parts);
            let heard = exchange_uncached(guest, Request::from_parts(parts, body)).await;
            cache.borrow_mut().invalidate(&written); // whatever it said: it may have been done
            heard
        }
        CacheLookup::Fresh(response) => {
            DestinationCounters::increase(&guest.context.upstream.counters.cache_hits, 1);
            Ok(HttpAnswer::Stored(response))
        }
        CacheLookup::Fetch(asked) => fetch_for_cache(guest, cache, parts, *asked).await,
    }
}

async fn fetch_for_cache(
    guest: &HttpSession,
    cache: &Rc<RefCell<HttpCache>>,
    parts: Parts,
    asked: PendingFetch,
) -> Result<HttpAnswer, ExchangeError> {
    let mut request = Request::from_parts(parts.clone(), HttpRequestBody::Empty);
    request.headers_mut().extend(asked.revalidation_headers());
    let (response, line, over) = relay::send_request(guest, request).await?;
    let (head, body) = response.into_parts();
    let word = cache
        .borrow_mut()
        .handle_response(asked, &head, SystemTime::now());
    let copying = match word {
        Word::Confirmed(response) => {
            DestinationCounters::increase(&guest.context.upstream.counters.cache_hits, 1);
            DestinationCounters::increase(&guest.context.upstream.counters.revalidated, 1);
            drop(body);
            guest.finish_response(line).await;
            return Ok(HttpAnswer::Stored(response));
        }
        Word::Unmatched => {
            drop(body);
            guest.finish_response(line).await;
            return exchange_uncached(guest, Request::from_parts(parts, HttpRequestBody::Empty))
                .await;
        }
        Word::NotStored => None,
        Word::Store(keeping) if body.size_hint().lower() > keeping.max_body_bytes as u64 => None,
        Word::Store(keeping) => Some(BodyCopy {
            cache: Rc::clone(cache),
            pending: keeping,
            body: BytesMut::new(),
        }),
    };
    Ok(HttpAnswer::Fetched(
        Response::from_parts(head, body),
        line,
        over,
        copying,
    ))
}

async fn exchange_uncached(
    guest: &HttpSession,
    request: Request<HttpRequestBody>,
) -> Result<HttpAnswer, ExchangeError> {
    let (response, line, over) = relay::send_request(guest, request).await?;
    Ok(HttpAnswer::Fetched(response, line, over, None))
}

/// What of a request says which resource it is about.
fn resource_parts(parts: &Parts) -> Parts {
    let mut bare = Request::new(());
    *bare.method_mut() = parts.method.clone();
    *bare.uri_mut() = parts.uri.clone();
    *bare.headers_mut() = parts.headers.clone();
    bare.into_parts().0
}
