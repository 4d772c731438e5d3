//! Connections to instances, kept between requests. One set a thread: no lock, and the task that drives a connection
//! wakes on the core that waits for it.
//!
//! What goes in clear and what goes in each version of TLS is kept apart: a request cannot take a connection that it did not ask
//! for. Connections with TLS belong to who opened them; those of a caller that was renewed, or to an instance whose certificate has ended,
//! take no new requests.

mod connection_set;

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::Either;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::{TrySendError, http1, http2};
use nearpath_wire::client::{self, ConnectError};
use nearpath_wire::identity::Peer;
use nearpath_wire::mutual::{CallerStream, DialError, Protocol, Verdict, Version};
use nearpath_wire::quic::Caller;
use tokio::net::TcpStream;

use crate::function::Endpoint;
use crate::request::Upload;
use connection_set::{Shelf, Stream};

/// What is between HTTP and TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cover {
    /// Nothing.
    Plain,
    /// TLS of this version, with certificates on both sides.
    Tls(Version),
}

/// A connection to one instance, held for one request.
pub(crate) enum Line {
    /// Nobody else uses it.
    Http1 { sender: http1::SendRequest<Upload>, tls: Option<Rc<Tls>> },
    /// Others may use it as well.
    Http2 { sender: http2::SendRequest<Upload>, stream: Stream },
}

/// What is known of a connection with TLS.
#[derive(Debug)]
pub(crate) struct Tls {
    version: Version,
    /// Of which caller it is.
    era: u32,
    peer: Peer,
    /// What the instance says of the caller's certificate.
    verdict: Verdict,
    /// It has answered a request: the caller is accepted.
    proven: Cell<bool>,
}

impl Line {
    /// Sends a request. An error that holds the request says that not a byte of it was sent. Not an `async fn`: the request
    /// goes to the connection's task at once and is not kept in the future.
    pub(crate) fn send(
        &mut self,
        request: Request<Upload>,
    ) -> impl Future<Output = Result<Response<Incoming>, TrySendError<Request<Upload>>>> + use<> {
        match self {
            Self::Http1 { sender, .. } => Either::Left(sender.try_send_request(request)),
            Self::Http2 { sender, .. } => Either::Right(sender.try_send_request(request)),
        }
    }
}

impl Line {
    fn tls(&self) -> Option<&Tls> {
        match self {
            Self::Http1 { tls, .. } => tls.as_deref(),
            Self::Http2 { stream, .. } => stream.tls(),
        }
    }

    /// Whether the instance may still turn the caller's certificate down.
    pub(crate) fn is_on_trial(&self) -> bool {
        self.tls().is_some_and(|tls| !tls.proven.get())
    }

    /// A request was answered.
    pub(crate) fn answered(&self) {
        self.tls().inspect(|tls| tls.proven.set(true));
    }

    /// Why the instance turned the caller's certificate down. Nothing that was sent on this line was looked at.
    pub(crate) fn refusal(&self) -> Option<String> {
        self.tls()?.verdict.refusal()
    }
}

/// Every connection of one thread over TCP.
#[derive(Default)]
pub(crate) struct Pools {
    plain: Shelf,
    tls13: Shelf,
    tls12: Shelf,
    /// Who called last over TLS, and the how manieth that is.
    caller: RefCell<Option<Caller>>,
    era: Cell<u32>,
}

impl Pools {
    /// An idle connection to the instance, the one used last.
    pub(crate) fn take(&self, endpoint: &Endpoint, cover: Cover, h2: bool) -> Option<Line> {
        self.shelf(cover).take(endpoint, h2)
    }

    /// A new connection; one with TLS as `caller`.
    ///
    /// # Errors
    /// When there is none within `limit`; nothing was sent.
    pub(crate) async fn open(
        &self,
        endpoint: &Arc<Endpoint>,
        cover: Cover,
        h2: bool,
        limit: Duration,
        caller: Option<Caller>,
    ) -> Result<Line, ConnectError> {
        let dialing = Dialing { pools: self, endpoint, cover, limit, caller };
        match h2 {
            false => {
                let (sender, tls) = dialing.http1().await?;
                Ok(Line::Http1 { sender, tls })
            }
            true => self.shelf(cover).share(endpoint, || dialing.http2()).await,
        }
    }

    /// Keeps a connection whose request is over, unless the instance was withdrawn or the caller renewed.
    pub(crate) fn put(&self, endpoint: &Arc<Endpoint>, line: Line, now: u32) {
        let Line::Http1 { sender, tls } = line else { return };
        let stale = tls.as_ref().is_some_and(|tls| tls.era != self.era.get());
        if stale || sender.is_closed() || endpoint.load().is_none() {
            return;
        }
        let cover = tls.as_ref().map_or(Cover::Plain, |tls| Cover::Tls(tls.version));
        self.shelf(cover).put(endpoint, sender, tls, now);
    }

    /// Drops what is closed, idle since before `oldest`, or leads to an instance that is withdrawn or has an old certificate.
    pub(crate) fn sweep(&self, oldest: u32) {
        self.plain.sweep(oldest, SystemTime::UNIX_EPOCH);
        if self.era.get() > 0 {
            let now = SystemTime::now();
            [&self.tls13, &self.tls12].into_iter().for_each(|shelf| shelf.sweep(oldest, now));
        }
    }

    /// Calls go out as this one from now on: connections of another take no more of them.
    pub(crate) fn meet(&self, caller: &Caller) {
        let before = self.caller.replace(Some(caller.clone()));
        if before.is_none_or(|before| !before.is_same(caller)) {
            self.era.set(self.era.get() + 1);
            [&self.tls13, &self.tls12].into_iter().for_each(Shelf::clear);
        }
    }

    fn shelf(&self, cover: Cover) -> &Shelf {
        match cover {
            Cover::Plain => &self.plain,
            Cover::Tls(Version::Tls13) => &self.tls13,
            Cover::Tls(Version::Tls12) => &self.tls12,
        }
    }
}

/// A connection that is being opened.
struct Dialing<'a> {
    pools: &'a Pools,
    endpoint: &'a Endpoint,
    cover: Cover,
    limit: Duration,
    caller: Option<Caller>,
}

impl Dialing<'_> {
    async fn http1(&self) -> Result<(http1::SendRequest<Upload>, Option<Rc<Tls>>), ConnectError> {
        let addr = self.endpoint.addr;
        match self.cover {
            Cover::Plain => client::http1(addr, self.limit).await.map(|sender| (sender, None)),
            Cover::Tls(version) => {
                let (stream, tls) = self.secured(version, Protocol::Http1).await?;
                client::http1_on(stream, addr).await.map(|sender| (sender, Some(tls)))
            }
        }
    }

    async fn http2(&self) -> Result<(http2::SendRequest<Upload>, Option<Rc<Tls>>), ConnectError> {
        let addr = self.endpoint.addr;
        match self.cover {
            Cover::Plain => client::http2(addr, self.limit).await.map(|sender| (sender, None)),
            Cover::Tls(version) => {
                let (stream, tls) = self.secured(version, Protocol::Http2).await?;
                client::http2_on(stream, addr).await.map(|sender| (sender, Some(tls)))
            }
        }
    }

    async fn secured(
        &self,
        version: Version,
        protocol: Protocol,
    ) -> Result<(CallerStream<TcpStream>, Rc<Tls>), ConnectError> {
        let addr = self.endpoint.addr;
        let nameless = |who| DialError::Nameless { addr, who };
        let caller = self.caller.as_ref().ok_or_else(|| nameless("the gateway"))?;
        let name = self.endpoint.name().ok_or_else(|| nameless("the instance, whose log says why,"))?;
        self.pools.meet(caller);
        let era = self.pools.era.get();
        let (stream, peer) = caller.tls().dial(addr, name, version, protocol, self.limit).await?;
        let (verdict, proven) = (stream.verdict().clone(), Cell::new(false));
        Ok((stream, Rc::new(Tls { version, era, peer, verdict, proven })))
    }
}
