//! Connections to an HTTP server beside or above us, the tenant's or the gateway: one call at a time on those of HTTP/1.1 ([`pool`]), many on those of h2c
//! ([`shared`]).
//!
//! Few are opened at a time, and none is waited for long: a simple server has room for five that it has not accepted yet
//! (Python's default), drops what comes beyond, and the kernel asks again only after a second.
//!
//! A request is sent again only when hyper hands it back, which proves that no byte of it left. Anything else may have run.

mod peer;
mod pool;
mod shared;
mod stream_load;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response, Version};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use nearpath_types::PlatformError;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::body::Body;
use crate::inbound::Inbound;

pub(crate) use peer::Peer;
use pool::{Leased, Pool};
use shared::{Carried, Shared};
pub(crate) use stream_load::Stream;
use stream_load::{Load, UNKNOWN};

/// Most header fields of an answer.
const HEADERS: usize = 128;
/// Largest head of an answer in bytes.
const HEAD: usize = 64 * 1024;
/// Bytes of one h2c stream that may be on the way unread, and four times that of a connection.
const WINDOW: u32 = 256 * 1024;
/// How often a request that provably was not sent is tried.
const TRIES: usize = 4;
/// Connections that are being opened at the same time.
const DIALS: usize = 4;
/// How long the first try to connect may take, each one being followed by one with twice the time.
const PATIENCE: Duration = Duration::from_millis(10);
/// Tries to connect; 82 s in all.
const KNOCKS: u32 = 13;

/// An HTTP/1.1 connection, and its socket for [`pool`] to hurry acknowledgements on.
#[derive(Debug)]
struct Http1 {
    sender: http1::SendRequest<Inbound>,
    socket: OwnedFd,
}

type Http2 = http2::SendRequest<Inbound>;

/// Why a try failed; with the request, if it was not sent.
type Failed = (PlatformError, Option<Request<Inbound>>);

/// A server and the connections to it.
#[derive(Debug)]
pub(crate) struct Upstream {
    peer: Peer,
    addrs: Vec<SocketAddr>,
    pool: Arc<Pool>,
    shared: Shared,
    dials: Semaphore,
}

impl Upstream {
    pub(crate) fn new(peer: Peer, addrs: Vec<SocketAddr>) -> Self {
        Self { peer, addrs, pool: Arc::default(), shared: Shared::default(), dials: Semaphore::new(DIALS) }
    }

    /// Sends a request and waits for the answer's head. The request's version chooses the protocol.
    ///
    /// # Errors
    /// [`Peer`]'s when there is no connection or it broke; `overload` when the server allows no more streams; what the
    /// request's own body did wrong.
    pub(crate) async fn send(&self, request: Request<Inbound>) -> Result<Response<Body>, PlatformError> {
        let mut request = request;
        for last in (0..TRIES).map(|n| n + 1 == TRIES) {
            let sent = match request.version() {
                Version::HTTP_2 => self.send_http2(request).await,
                _ => self.send_http1(request, last).await,
            };
            match sent {
                Ok(response) => return Ok(response),
                Err((_, Some(unsent))) if !last => request = unsent,
                Err((fault, _)) => return Err(fault),
            }
        }
        unreachable!("the last try returns")
    }

    async fn send_http1(&self, request: Request<Inbound>, fresh: bool) -> Result<Response<Body>, Failed> {
        let connection = if fresh { self.dial_http1().await } else { self.take_http1().await };
        let mut connection = connection.map_err(|fault| (self.peer.unreachable(&fault), None))?;
        match connection.sender.try_send_request(request).await {
            Ok(response) => Ok(response.map(|body| Body::stream(Leased::new(body, connection, &self.pool)))),
            Err(fault) => Err(self.peer.explain(fault)),
        }
    }

    /// An idle connection or a new one, whichever is there first.
    async fn take_http1(&self) -> io::Result<Http1> {
        let mut dialed = pin!(self.dial_http1());
        loop {
            if let Some(connection) = self.pool.take() {
                return Ok(connection);
            }
            tokio::select! {
                biased;
                dialed = dialed.as_mut() => return dialed,
                () = self.pool.given() => {}
            }
        }
    }

    async fn send_http2(&self, mut request: Request<Inbound>) -> Result<Response<Body>, Failed> {
        let taken = match self.shared.take() {
            Some(taken) => taken,
            None => self.shared.open(self.peer, self.dial_http2()).await.map_err(|fault| (fault, None))?,
        };
        let (mut sender, stream) = (taken.sender, Arc::new(taken.stream));
        request.body_mut().keep(Arc::clone(&stream));
        let sent = sender.try_send_request(request); // it is on its way now, not when this is awaited
        if let Some(turn) = taken.turn {
            stream.load().settled().await;
            drop(turn);
        }
        sent.await
            .map(|response| response.map(|body| Body::stream(Carried::new(body, stream))))
            .map_err(|fault| self.peer.explain(fault))
    }

    async fn dial_http1(&self) -> io::Result<Http1> {
        let stream = self.dial().await?;
        let socket = stream.as_fd().try_clone_to_owned()?;
        let mut http1 = http1::Builder::new();
        let handshake = http1.max_headers(HEADERS).max_buf_size(HEAD).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(io::Error::other)?;
        tokio::spawn(connection.with_upgrades());
        Ok(Http1 { sender, socket })
    }

    async fn dial_http2(&self) -> io::Result<(Http2, Arc<Load>)> {
        let io = TokioIo::new(self.dial().await?);
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_header_list_size(HEAD as u32).initial_max_send_streams(UNKNOWN);
        builder.initial_stream_window_size(WINDOW).initial_connection_window_size(4 * WINDOW);
        let (sender, mut connection) = builder.handshake(io).await.map_err(io::Error::other)?;
        let load = Arc::<Load>::default();
        let watched = Arc::clone(&load);
        tokio::spawn(async move {
            let polls = std::future::poll_fn(|cx| {
                let polled = Pin::new(&mut connection).poll(cx);
                watched.allow(connection.current_max_send_streams());
                polled
            });
            let _ = polls.await; // what its calls were told
            watched.end();
        });
        Ok((sender, load))
    }

    /// Connects when it is its turn.
    async fn dial(&self) -> io::Result<TcpStream> {
        let _turn = self.dials.acquire().await.expect("this semaphore is never closed");
        for knock in 0..KNOCKS {
            if let Ok(connected) = timeout(PATIENCE * 2_u32.pow(knock), connect(&self.addrs)).await {
                return connected;
            }
        }
        Err(io::Error::new(io::ErrorKind::TimedOut, "it does not accept connections"))
    }
}

/// Connects to the first address that accepts.
///
/// # Errors
/// The last address's.
pub(crate) async fn connect(addrs: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut fault = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for addr in addrs {
        match TcpStream::connect(addr).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => fault = io::Error::new(error.kind(), format!("{addr}: {error}")),
        }
    }
    Err(fault)
}
