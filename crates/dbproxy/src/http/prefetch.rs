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

use super::body::{Download, Upload};
use super::cached::{self, Heard};
use super::{Guest, guest};
use nearpath_connpool::upstream::Upstream;

use crate::Visit;
use crate::prefetch::{Forecast, HELD};
use nearpath_connpool::counters::Ledger;

/// Longest body that is held.
const LONGEST: usize = 1 << 20;
/// What a request says of itself alone: it is another one each time, and no answer depends on it.
const OF_ONE: [&str; 5] = ["traceparent", "tracestate", "baggage", "x-request-id", "x-call-id"];

/// Reads of one destination.
pub(super) type Reads = RefCell<Forecast<HeaderMap, Issued>>;

/// A read that is under way or done.
#[derive(Debug)]
pub(super) struct Issued {
    headers: HeaderMap,
    answer: JoinHandle<Option<Response<Bytes>>>,
}

/// A call of the function has arrived.
pub fn foresee(visit: &Visit) {
    let guest = guest(visit.clone());
    let Some(reads) = guest.house.reads.get() else { return };
    for read in &visit.upstream.destination.egress.prefetch {
        let (function, now) = (&visit.caller.function, Instant::now());
        let Some((headers, steady)) = reads.borrow().known(function, read) else { continue };
        let personal = [AUTHORIZATION, COOKIE].iter().any(|name| headers.contains_key(name));
        let (room, old) = reads.borrow_mut().has_room(function, read, now);
        Ledger::count(&visit.upstream.ledger.unforeseen, old);
        if room && (steady || !personal) {
            let answer = spawn_local(read_ahead(guest.clone(), read.clone(), headers.clone()));
            reads.borrow_mut().issued(function, read, Issued { headers, answer }, now);
            spawn_local(forget(guest.clone()));
        }
    }
}

/// Whoever does not come in time is not waited for.
async fn forget(guest: Rc<Guest>) {
    tokio::time::sleep(HELD).await;
    if let Some(reads) = guest.house.reads.get() {
        Ledger::count(&guest.visit.upstream.ledger.unforeseen, reads.borrow_mut().sweep(Instant::now()));
    }
}

async fn read_ahead(guest: Rc<Guest>, path: String, headers: HeaderMap) -> Option<Response<Bytes>> {
    let mut request = Request::new(Upload::Empty);
    *request.uri_mut() = path.parse().ok()?;
    *request.headers_mut() = headers;
    let heard = tokio::time::timeout(HELD, cached::exchange(&guest, request)).await.ok()?.ok()?;
    let response = match heard {
        Heard::Kept(response) => response.map(|body| Download::Own(Full::new(body))),
        Heard::From(response, line, over, copying) => {
            response.map(|body| Download::new(body, guest.clone(), line, over, copying))
        }
    };
    let (head, body) = response.into_parts();
    let whole = tokio::time::timeout(HELD, Limited::new(body, LONGEST).collect()).await.ok()?.ok()?;
    let fits = !head.status.is_server_error() && whole.trailers().is_none();
    fits.then(|| Response::from_parts(head, whole.to_bytes()))
}

/// The answer that was asked for ahead, if there is one to the very same request; waits for it when it is under way. What may change something ends what
/// was read before.
pub(super) async fn recall(guest: &Guest, request: &Parts, empty: bool) -> Option<Response<Bytes>> {
    let reads = guest.house.reads.get()?;
    let Visit { caller, upstream: Upstream { destination, ledger, .. }, .. } = &guest.visit;
    if !request.method.is_safe() {
        Ledger::count(&ledger.unforeseen, reads.borrow_mut().wrote(|_| true));
        return None;
    }
    let path = request.uri.path_and_query().filter(|_| request.method == Method::GET && empty)?.as_str();
    let read = destination.egress.prefetch.iter().find(|read| *read == path)?;
    let headers = of_all(&request.headers);
    let is_same = |issued: &Issued| issued.headers == headers;
    let (found, old) = reads.borrow_mut().take(&caller.function, read, Instant::now(), is_same);
    Ledger::count(&ledger.unforeseen, old);
    reads.borrow_mut().learn(&caller.function, read, headers);
    let answer = found?.answer.await.ok().flatten();
    let counter = if answer.is_some() { &ledger.foreseen } else { &ledger.unforeseen };
    Ledger::count(counter, 1);
    answer
}

/// Something may have been changed by now.
pub(super) fn wrote(guest: &Guest) {
    if let Some(reads) = guest.house.reads.get() {
        Ledger::count(&guest.visit.upstream.ledger.unforeseen, reads.borrow_mut().wrote(|_| true));
    }
}

/// What makes a request this one, and not another of its kind.
fn of_all(headers: &HeaderMap) -> HeaderMap {
    let lines = headers.iter().filter(|(name, _): &(&HeaderName, _)| !OF_ONE.contains(&name.as_str()));
    lines.map(|(name, value)| (name.clone(), value.clone())).collect()
}
