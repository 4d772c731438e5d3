//! Requests on their way through the cache, if there is one.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use http::request::Parts;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::body::Incoming;

use super::Guest;
use super::backend::Line;
use super::body::{Over, Upload};
use super::cache::{Asked, Cache, Heard as Word, Keeping, Look};
use super::prefetch;
use super::relay::{self, Failed};
use nearpath_connpool::counters::Ledger;
use nearpath_connpool::idle::Kept;

/// Where the answer to a request comes from.
pub(super) enum Heard {
    /// From what was kept.
    Kept(Response<Bytes>),
    /// From the destination.
    From(Response<Incoming>, Kept<Line>, Option<Over>, Option<Copying>),
}

/// A body that passes by, and of which the cache gets a copy.
pub(super) struct Copying {
    cache: Rc<RefCell<Cache>>,
    keeping: Box<Keeping>,
    body: BytesMut,
}

impl Copying {
    /// One more piece. A body that is too long, or has trailers, is not kept.
    pub(super) fn with(mut self, frame: &Frame<Bytes>) -> Option<Self> {
        let data = frame.data_ref()?;
        self.body.extend_from_slice(data);
        (self.body.len() <= self.keeping.longest).then_some(self)
    }

    /// That was all of it.
    pub(super) fn end(self) {
        self.cache.borrow_mut().keep(*self.keeping, self.body.freeze(), SystemTime::now());
    }
}

/// Answers a request with what was asked ahead, or from the cache, or has the destination do it.
pub(super) async fn answer(guest: &Guest, request: Request<Upload>) -> Result<Heard, Failed> {
    let (parts, body) = request.into_parts();
    if let Some(response) = prefetch::recall(guest, &parts, body.is_end_stream()).await {
        return Ok(Heard::Kept(response));
    }
    let writes = !parts.method.is_safe();
    let heard = exchange(guest, Request::from_parts(parts, body)).await;
    if writes {
        prefetch::wrote(guest); // what was read meanwhile may be older than that
    }
    heard
}

/// Answers a request from the cache, or has the destination do it.
pub(super) async fn exchange(guest: &Guest, request: Request<Upload>) -> Result<Heard, Failed> {
    let Some(cache) = &guest.house.cache else { return plainly(guest, request).await };
    let (parts, body) = request.into_parts();
    let look = cache.borrow_mut().look(&parts, body.is_end_stream(), SystemTime::now());
    match look {
        Look::Pass if parts.method.is_safe() => plainly(guest, Request::from_parts(parts, body)).await,
        Look::Pass => {
            let written = bare(&parts);
            let heard = plainly(guest, Request::from_parts(parts, body)).await;
            cache.borrow_mut().wrote(&written); // whatever it said: it may have been done
            heard
        }
        Look::Fresh(response) => {
            Ledger::count(&guest.visit.upstream.ledger.cached, 1);
            Ok(Heard::Kept(response))
        }
        Look::Ask(asked) => ask(guest, cache, parts, *asked).await,
    }
}

async fn ask(guest: &Guest, cache: &Rc<RefCell<Cache>>, parts: Parts, asked: Asked) -> Result<Heard, Failed> {
    let mut request = Request::from_parts(parts.clone(), Upload::Empty);
    request.headers_mut().extend(asked.conditions());
    let (response, line, over) = relay::exchange(guest, request).await?;
    let (head, body) = response.into_parts();
    let word = cache.borrow_mut().heard(asked, &head, SystemTime::now());
    let copying = match word {
        Word::Same(response) => {
            Ledger::count(&guest.visit.upstream.ledger.cached, 1);
            Ledger::count(&guest.visit.upstream.ledger.confirmed, 1);
            drop(body);
            guest.finish(line).await;
            return Ok(Heard::Kept(response));
        }
        Word::Unasked => {
            drop(body);
            guest.finish(line).await;
            return plainly(guest, Request::from_parts(parts, Upload::Empty)).await;
        }
        Word::Other => None,
        Word::Keep(keeping) if body.size_hint().lower() > keeping.longest as u64 => None,
        Word::Keep(keeping) => Some(Copying { cache: Rc::clone(cache), keeping, body: BytesMut::new() }),
    };
    Ok(Heard::From(Response::from_parts(head, body), line, over, copying))
}

async fn plainly(guest: &Guest, request: Request<Upload>) -> Result<Heard, Failed> {
    let (response, line, over) = relay::exchange(guest, request).await?;
    Ok(Heard::From(response, line, over, None))
}

/// What of a request says which resource it is about.
fn bare(parts: &Parts) -> Parts {
    let mut bare = Request::new(());
    *bare.method_mut() = parts.method.clone();
    *bare.uri_mut() = parts.uri.clone();
    *bare.headers_mut() = parts.headers.clone();
    bare.into_parts().0
}
