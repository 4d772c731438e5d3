//! One caller's connection: which protocol it speaks, and an answer for each of its requests.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::ALT_SVC;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use nearpath_types::Reason;
use nearpath_wire::replay::{self, Spoken};
use nearpath_wire::{BoxError, server};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OwnedSemaphorePermit;
use tokio_rustls::TlsAcceptor;

use super::Port;
use super::caller::Caller;
use super::life::{Busy, Life};
use super::resets::{Resets, Verdict};
use super::watched::Watched;
use super::whole::{self, Left, Whole};
use super::worded::Worded;
use crate::call::{Arriving, Peer};
use crate::deliver::Content;
use crate::lane::Lane;
use crate::record::Completion;
use crate::route::{self, Function, Target};
use crate::{Zone, path};

/// Serves one connection to its end, and keeps its `place` until then. Its requests are answered by [`path::answer`].
pub(super) async fn serve_connection(
    lane: Rc<Lane>,
    port: Rc<Port>,
    socket: TcpStream,
    addr: SocketAddr,
    _place: OwnedSemaphorePermit,
) {
    let life = Life::new(lane.ticks());
    let peer = Rc::new(peer(port.zone, port.tls.is_some(), addr));
    lane.lives.add(life.clone());
    if port.is_draining() {
        lane.lives.drain(lane.now()); // accepted in the same moment: it did not hear the order
    }
    let (resets, alt_svc) = (Rc::new(Resets::new(lane.now())), port.alt_svc.clone());
    let visit = Rc::new(Visit { lane: lane.clone(), peer, life: life.clone(), alt_svc, resets });
    match life.govern(serve(&visit, &port, Caller::new(socket, life.clone()))).await {
        Some(Ok(())) => {}
        Some(Err(error)) => tracing::debug!(%addr, %error, "connection ended"),
        None => drop(lane.totals.connections_cut.fetch_add(1, Ordering::Relaxed)),
    }
    lane.lives.remove(&life);
}

pub(super) fn peer(zone: Zone, encrypted: bool, addr: SocketAddr) -> Peer {
    let ip = addr.ip().to_canonical();
    Peer {
        zone,
        addr: ip,
        forwarded_for: HeaderValue::from_str(&ip.to_string()).expect("an address is ASCII"),
        proto: HeaderValue::from_static(if encrypted { "https" } else { "http" }),
    }
}

/// Small, because it is moved before it first runs: what is large is on the heap. `TCP_NODELAY` comes from the listener.
async fn serve(visit: &Rc<Visit>, port: &Port, mut stream: Caller) -> Result<(), BoxError> {
    if let Some(tls) = &port.tls {
        return Box::pin(encrypted(visit, port, tls, stream)).await;
    }
    match replay::tell(&mut stream).await? {
        None => Ok(()),
        Some((Spoken::Http1, seen)) => {
            http1(visit, port, Watched::new(stream, seen, visit.life.clone()).closed_by_drop()).await
        }
        Some((Spoken::Http2, seen)) => http2(visit, port, Watched::new(stream, seen, visit.life.clone())).await,
    }
}

async fn encrypted(
    visit: &Rc<Visit>,
    port: &Port,
    tls: &Arc<rustls::ServerConfig>,
    stream: Caller,
) -> Result<(), BoxError> {
    let handshake = TlsAcceptor::from(tls.clone()).accept(stream);
    let stream = tokio::time::timeout(port.tls_timeout, handshake).await.map_err(io::Error::from)??;
    visit.life.expects();
    let h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let stream = Watched::new(stream, Bytes::new(), visit.life.clone());
    if h2 { http2(visit, port, stream).await } else { http1(visit, port, stream).await }
}

async fn http1<T>(visit: &Rc<Visit>, port: &Port, io: Watched<T>) -> Result<(), BoxError>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    visit.life.speaks(false);
    let io = match whole::serve(visit, io).await? {
        Left::Over => return Ok(()),
        Left::Handed(io) => io,
    };
    let io = Worded::new(io, visit.life.clone(), port.limits);
    let service = service_fn(|request| visit.answer(request));
    let connection = server::http1(&port.limits).serve_connection(TokioIo::new(io), service);
    let mut connection = Box::pin(connection.with_upgrades());
    let served = visit.to_its_end(connection.as_mut(), |connection| connection.graceful_shutdown()).await;
    visit.life.ended(); // upgraded, its stream lives on
    visit.judged(served, "HTTP/1.1")
}

async fn http2<T>(visit: &Rc<Visit>, port: &Port, io: Watched<T>) -> Result<(), BoxError>
where
    T: AsyncRead + AsyncWrite + Unpin + 'static,
{
    visit.life.speaks(true);
    let service = service_fn(|request| visit.answer_stream(request));
    let mut connection = Box::pin(server::http2(&port.limits).serve_connection(TokioIo::new(io), service));
    let served = visit.to_its_end(connection.as_mut(), |connection| connection.graceful_shutdown()).await;
    visit.judged(served, "HTTP/2")
}

/// One connection's requests.
pub(super) struct Visit {
    pub(super) lane: Rc<Lane>,
    pub(super) peer: Rc<Peer>,
    pub(super) life: Arc<Life>,
    /// Where else the same is served.
    pub(super) alt_svc: Option<HeaderValue>,
    pub(super) resets: Rc<Resets>,
}

/// The function that a plain request is for, and where its own path begins in the request's.
pub(super) struct Found {
    pub(super) function: Arc<Function>,
    pub(super) rest: usize,
}

impl Visit {
    /// Finds a plain request's function; `None`: the request is to be refused.
    pub(super) fn find(&self, whole: &Whole) -> Option<Found> {
        match route::parse(whole.path()) {
            Ok(Target::Function { name, rest }) => self.lane.table.find(name).map(|function| Found { function, rest }),
            _ => None,
        }
    }

    /// Says where else the same is served.
    pub(super) fn advertise(&self, headers: &mut HeaderMap) {
        advertise(headers, self.alt_svc.clone());
    }

    /// Looks at the request at once, so that the future need not hold it.
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Result<Response<Reply>, Infallible>> + use<> {
        let busy = self.life.begin(request.body().is_end_stream());
        let begun = path::begin(&self.lane, &self.peer, request.map(Arriving::Http));
        let alt_svc = self.alt_svc.clone();
        async move {
            let mut response = path::answer(begun).await;
            advertise(response.headers_mut(), alt_svc);
            Ok(response.map(|content| Reply::new(content, busy)))
        }
    }

    fn answer_stream(
        self: &Rc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Reply>, Infallible>> + use<> {
        let stream = Stream::new(self);
        let answer = self.answer(request);
        async move {
            let response = answer.await;
            stream.answered();
            response
        }
    }

    /// Drives the connection until it ends; once drained, it takes no new requests.
    async fn to_its_end<C: Future>(&self, mut connection: Pin<&mut C>, shut: impl Fn(Pin<&mut C>)) -> C::Output {
        let mut draining = false;
        poll_fn(|cx| {
            if !draining && self.life.is_draining() {
                draining = true;
                shut(connection.as_mut());
            }
            connection.as_mut().poll(cx)
        })
        .await
    }

    /// A head that hyper could not read is answered already ([`super::worded`]); here it is recorded.
    fn judged(&self, served: hyper::Result<()>, protocol: &'static str) -> Result<(), BoxError> {
        let Err(error) = served else { return Ok(()) };
        if error.is_parse() {
            let reason = if error.is_parse_too_large() { Reason::HeadersTooLarge } else { Reason::BadRequest };
            Completion::unread(&self.lane, protocol).refused(reason);
        }
        Err(error.into())
    }
}

fn advertise(headers: &mut HeaderMap, alt_svc: Option<HeaderValue>) {
    if let Some(alt_svc) = alt_svc {
        headers.insert(ALT_SVC, alt_svc);
    }
}

/// One request of HTTP/2 or 3: dropped unanswered, it was reset.
pub(super) struct Stream {
    visit: Rc<Visit>,
    answered: Cell<bool>,
}

impl Stream {
    pub(super) fn new(visit: &Rc<Visit>) -> Self {
        Self { visit: visit.clone(), answered: Cell::new(false) }
    }

    /// Its answer is there.
    pub(super) fn answered(&self) {
        self.answered.set(true);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Visit { resets, life, lane, .. } = &*self.visit;
        if self.answered.get() {
            return resets.answered();
        }
        match resets.abandoned(lane.now()) {
            Verdict::Fine => {}
            Verdict::Leave => life.drain(),
            Verdict::Cut => life.cut(),
        }
    }
}

/// An answer's body, which keeps the connection busy until its end.
pub(super) struct Reply {
    content: Content,
    busy: Busy,
}

impl Reply {
    pub(super) fn new(content: Content, mut busy: Busy) -> Self {
        busy.gives();
        Self { content, busy }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Self { content, busy } = self.get_mut();
        let polled = Pin::new(content).poll_frame(cx);
        match polled {
            Poll::Ready(_) => busy.gives(),
            Poll::Pending => busy.waits(),
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.content.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.content.size_hint()
    }
}
