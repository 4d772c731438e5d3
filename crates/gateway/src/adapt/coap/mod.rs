//! CoAP (RFC 7252) over UDP: `coap://HOST/function/NAME/path?query` calls a function as HTTP does.
//!
//! [`endpoint`] decides about each datagram and each answer, with block-wise transfers (RFC 7959, [`transfers`]), observation
//! (RFC 7641, [`observers`]), repeated messages ([`exchanges`], [`resend`]) and proof of address (RFC 9175, [`proof`]).
//! This rim has the socket, calls the functions and knows the time. It is one task, which sleeps while nothing is asked.

mod endpoint;
mod exchanges;
pub(super) mod fuzz;
mod message;
mod observers;
mod proof;
mod resend;
mod status;
mod transfers;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use coap_lite::ResponseType;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method};
use nearpath_daemon::drain;
use nearpath_types::Reason;
use tokio::net::UdpSocket;
use uuid::Uuid;

use super::invoke::{self, Ask};
use super::{Coap, CoapCounts};
use crate::lane::Lane;
use endpoint::{Answer, Counted, Effect, Endpoint, LONGEST};
use message::Wanted;

/// Tells a function that it is asked by FETCH, for which HTTP has no method of its own.
const X_COAP_METHOD: HeaderName = HeaderName::from_static("x-coap-method");

/// Serves until the drain begins, and then until what was asked is answered.
pub(super) async fn serve(lane: Rc<Lane>, coap: Coap, counts: Arc<CoapCounts>, drain: drain::Watch) -> io::Result<()> {
    coap.socket.set_nonblocking(true)?;
    let socket = UdpSocket::from_std(coap.socket)?;
    let seed = Uuid::new_v4().as_u64_pair().0; // who could guess it could acknowledge in another's name
    let endpoint = Endpoint::new(coap.limits.clone(), seed, Instant::now());
    let (calls, effects) = (FuturesUnordered::new(), Vec::new());
    let rim = Rim { lane: lane.clone(), socket, body: coap.limits.body, counts, endpoint, calls, effects };
    lane.spawn(rim.live(drain.clone()));
    drain.signaled().await;
    Ok(())
}

struct Rim {
    lane: Rc<Lane>,
    socket: UdpSocket,
    body: usize,
    counts: Arc<CoapCounts>,
    endpoint: Endpoint,
    calls: FuturesUnordered<LocalBoxFuture<'static, (u64, Answer)>>,
    effects: Vec<Effect>,
}

impl Rim {
    async fn live(mut self, drain: drain::Watch) {
        let mut datagram = vec![0; LONGEST + 1];
        loop {
            let next = self.endpoint.next().map(tokio::time::Instant::from_std);
            let draining = drain.is_draining();
            if draining && self.calls.is_empty() {
                return;
            }
            tokio::select! {
                () = drain.signaled(), if !draining => continue,
                Some((call, answer)) = self.calls.next(), if !self.calls.is_empty() => {
                    self.endpoint.answered(call, answer, Instant::now(), &mut self.effects);
                }
                heard = self.socket.recv_from(&mut datagram), if !draining => match heard {
                    Ok((length, from)) => {
                        self.counts.datagrams.more();
                        self.endpoint.hear(from, &datagram[..length], Instant::now(), &mut self.effects);
                    }
                    Err(error) => tracing::debug!(%error, "coap: an earlier datagram could not be delivered"),
                },
                () = sleep_until(next) => {}
            }
            self.endpoint.tick(Instant::now(), &mut self.effects);
            self.carry_out().await;
        }
    }

    async fn carry_out(&mut self) {
        for effect in std::mem::take(&mut self.effects) {
            match effect {
                Effect::Send(to, bytes) => drop(self.socket.send_to(&bytes, to).await), // it is a datagram: it may be lost
                Effect::Call(call, from, wanted, body) => self.call(call, from, wanted, body),
                Effect::Count(what) => self.count(what),
            }
        }
        self.counts.observers.set(self.endpoint.observers());
    }

    fn count(&self, what: Counted) {
        let counts = &*self.counts;
        match what {
            Counted::Malformed => counts.malformed.more(),
            Counted::Duplicate => counts.duplicates.more(),
            Counted::Challenged => counts.challenged.more(),
            Counted::Refused => counts.refused.more(),
            Counted::Resent => counts.retransmissions.more(),
            Counted::Notified => counts.notifications.more(),
        }
    }

    fn call(&mut self, call: u64, from: SocketAddr, wanted: Wanted, body: Bytes) {
        let (lane, limit) = (self.lane.clone(), self.body);
        let (method, fetch) = (wanted.method.clone(), wanted.fetch);
        match ask(&lane, wanted, body) {
            Ok(ask) => self.calls.push(Box::pin(async move {
                let answer = invoke::invoke(&lane, &invoke::peer(from.ip(), "coap"), ask, limit).await;
                (call, told(answer, &method, fetch))
            })),
            Err(answer) => self.calls.push(Box::pin(std::future::ready((call, answer)))),
        }
    }
}

async fn sleep_until(next: Option<tokio::time::Instant>) {
    match next {
        Some(next) => tokio::time::sleep_until(next).await,
        None => std::future::pending().await,
    }
}

/// What a request asks of which function, or the answer to what asks of none.
fn ask(lane: &Lane, wanted: Wanted, body: Bytes) -> Result<Ask, Answer> {
    let refused = |code| Answer { code, format: None, body: Bytes::new() };
    let path: Vec<&str> = wanted.path.iter().map(String::as_str).collect();
    let (name, rest) = match &path[..] {
        ["function", name, rest @ ..] => (*name, rest),
        [".well-known", "core"] if wanted.method == Method::GET => return Err(directory(lane)),
        _ => ("", &[][..]),
    };
    let Some(function) = lane.table.find(name) else {
        lane.totals.refused.add(Reason::NoFunction);
        return Err(refused(ResponseType::NotFound));
    };
    let mut path = rest.iter().fold(String::new(), |path, segment| path + "/" + &invoke::segment(segment));
    for (number, argument) in wanted.query.iter().enumerate() {
        path.push(if number == 0 { '?' } else { '&' });
        path.push_str(&invoke::argument(argument));
    }
    let mut headers = HeaderMap::new();
    for (name, format) in [(CONTENT_TYPE, wanted.format), (ACCEPT, wanted.accept)] {
        let Some(format) = format else { continue };
        let unknown = match name == ACCEPT {
            true => ResponseType::NotAcceptable,
            false => ResponseType::UnsupportedContentFormat,
        };
        let kind = status::content_type(format).ok_or_else(|| refused(unknown))?;
        headers.insert(name, HeaderValue::from_static(kind));
    }
    if wanted.fetch {
        headers.insert(X_COAP_METHOD, HeaderValue::from_static("FETCH"));
    }
    Ok(Ask { function, method: wanted.method, path, headers, body, protocol: "CoAP" })
}

/// The functions, as RFC 6690 lists resources.
fn directory(lane: &Lane) -> Answer {
    let mut links: Vec<_> = lane.table.functions().iter().map(|one| format!("</function/{}>", one.name)).collect();
    links.sort_unstable();
    let body = links.join(",").into();
    Answer { code: ResponseType::Content, format: status::format("application/link-format"), body }
}

fn told(answer: invoke::Answer, method: &Method, fetch: bool) -> Answer {
    let Some(body) = answer.body else {
        return Answer { code: ResponseType::BadGateway, format: None, body: Bytes::new() }; // larger than the limit, or cut
    };
    let kind = answer.headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let code = status::code(answer.status, method, fetch);
    Answer { code, format: kind.and_then(status::format), body }
}
