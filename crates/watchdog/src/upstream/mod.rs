//! HTTP clients for the tenant's server and the gateway: one call at a time per HTTP/1.1 connection
//! ([`http1_pool`]), many per h2c connection ([`http2_pool`]).
//!
//! Few connections are opened at a time, and none is waited for long. A simple server has a backlog
//! of five (Python's default) and drops further connections, and the kernel retries only after a
//! second.
//!
//! A request is repeated only when hyper returns it, which proves that no byte of it was sent.
//! Anything else may have run.

mod http1_pool;
mod http2_pool;
mod peer;
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
use nearpath_wire::hop::headers::announce_body;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::request_body::RequestBody;
use crate::response_body::WatchdogBody;

use http1_pool::{Http1Pool, PooledBody};
use http2_pool::{Http2Body, Http2Pool};
pub(crate) use peer::UpstreamPeer;
pub(crate) use stream_load::StreamPermit;
use stream_load::{LIMIT_UNKNOWN, StreamLoad};

/// Maximum number of header fields of a response.
const MAX_HEADERS: usize = 128;
/// Maximum bytes of a response's head.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Flow-control window of an h2c stream in bytes; a connection has four times that.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Maximum attempts for a request that provably was not sent.
const MAX_SEND_TRIES: usize = 4;
/// Maximum number of connections that are being opened at the same time.
const MAX_CONCURRENT_DIALS: usize = 4;
/// Time limit of the first attempt to connect; each later one has twice as much.
const FIRST_DIAL_TIMEOUT: Duration = Duration::from_millis(10);
/// Maximum attempts to connect; 82 s in all.
const MAX_DIAL_TRIES: u32 = 13;

/// HTTP/1.1 connection, and its socket for immediate acknowledgements ([`http1_pool`]).
#[derive(Debug)]
struct Http1Connection {
    sender: http1::SendRequest<RequestBody>,
    socket: OwnedFd,
    opened_at: Instant,
}

type Http2Sender = http2::SendRequest<RequestBody>;

/// Error of an attempt; with the request, if it was not sent.
type UpstreamSendFailure = (PlatformError, Option<Request<RequestBody>>);

/// Server and the connections to it.
#[derive(Debug)]
pub(crate) struct UpstreamClient {
    peer: UpstreamPeer,
    addrs: Vec<SocketAddr>,
    http1_pool: Arc<Http1Pool>,
    http2_pool: Http2Pool,
    dial_permits: Semaphore,
}

impl UpstreamClient {
    pub(crate) fn new(peer: UpstreamPeer, addrs: Vec<SocketAddr>) -> Self {
        Self {
            peer,
            addrs,
            http1_pool: Arc::default(),
            http2_pool: Http2Pool::default(),
            dial_permits: Semaphore::new(MAX_CONCURRENT_DIALS),
        }
    }

    /// Closes connections that carry no request.
    pub(crate) fn close_idle_connections(&self) {
        self.http1_pool.close_idle();
        self.http2_pool.close_idle();
    }

    /// Sends a request and returns the response's head. The request's version chooses the protocol.
    ///
    /// # Errors
    /// [`UpstreamPeer`]'s when there is no connection or it broke; `overload` when the server
    /// allows no more streams; the error of the request's own body.
    pub(crate) async fn send_request(
        &self,
        request: Request<RequestBody>,
    ) -> Result<Response<WatchdogBody>, PlatformError> {
        let mut request = request;
        for last in (0..MAX_SEND_TRIES).map(|n| n + 1 == MAX_SEND_TRIES) {
            let sent = match request.version() {
                Version::HTTP_2 => self.send_http2(request).await,
                _ => self.send_http1(request, last).await,
            };
            match sent {
                Ok(response) => return Ok(response),
                // Returned by hyper: the server closed the connection before the request was
                // written.
                Err((_, Some(unsent))) if !last => request = unsent,
                Err((fault, _)) => return Err(fault),
            }
        }
        unreachable!("the last try returns")
    }

    async fn send_http1(
        &self,
        mut request: Request<RequestBody>,
        is_fresh: bool,
    ) -> Result<Response<WatchdogBody>, UpstreamSendFailure> {
        // The last attempt gets a new connection, because all idle ones may be stale.
        let connection = if is_fresh {
            self.dial_http1().await
        } else {
            self.take_http1().await
        };
        let mut connection = connection.map_err(|fault| (self.peer.connect_error(&fault), None))?;
        announce_body(&mut request);
        match connection.sender.try_send_request(request).await {
            Ok(response) => Ok(response.map(|body| {
                WatchdogBody::from_stream(PooledBody::new(body, connection, &self.http1_pool))
            })),
            Err(fault) => Err(self.peer.send_error(fault)),
        }
    }

    /// Returns an idle connection or a new one, whichever is there first.
    async fn take_http1(&self) -> io::Result<Http1Connection> {
        let mut dialed = pin!(self.dial_http1());
        loop {
            if let Some(connection) = self.http1_pool.take_idle() {
                return Ok(connection);
            }
            tokio::select! {
                // The dial first: a connection that was made must not be dropped for an idle one.
                biased;
                dialed = dialed.as_mut() => return dialed,
                () = self.http1_pool.wait_returned() => {}
            }
        }
    }

    async fn send_http2(
        &self,
        mut request: Request<RequestBody>,
    ) -> Result<Response<WatchdogBody>, UpstreamSendFailure> {
        let slot = match self.http2_pool.take_slot() {
            Some(taken) => taken,
            None => self
                .http2_pool
                .open_connection(self.peer, self.dial_http2())
                .await
                .map_err(|fault| (fault, None))?,
        };
        let (mut sender, stream) = (slot.sender, Arc::new(slot.stream));
        request.body_mut().hold_stream(Arc::clone(&stream));
        let sent = sender.try_send_request(request); // it is on its way now, not when this is awaited
        // Held until the limit is known, so that waiting calls do not open a connection each.
        if let Some(permit) = slot.open_permit {
            stream.load().wait_limit_known().await;
            drop(permit);
        }
        sent.await
            .map(|response| {
                response.map(|body| WatchdogBody::from_stream(Http2Body::new(body, stream)))
            })
            .map_err(|fault| self.peer.send_error(fault))
    }

    async fn dial_http1(&self) -> io::Result<Http1Connection> {
        let stream = self.dial_upstream().await?;
        // A duplicate: hyper owns the stream, and `TCP_QUICKACK` needs its socket.
        let socket = stream.as_fd().try_clone_to_owned()?;
        let mut http1 = http1::Builder::new();
        let handshake = http1
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD_BYTES)
            .handshake(TokioIo::new(stream))
            .await;
        let (sender, connection) = handshake.map_err(io::Error::other)?;
        tokio::spawn(connection.with_upgrades());
        Ok(Http1Connection {
            sender,
            socket,
            opened_at: Instant::now(),
        })
    }

    async fn dial_http2(&self) -> io::Result<(Http2Sender, Arc<StreamLoad>)> {
        let io = TokioIo::new(self.dial_upstream().await?);
        let mut builder = http2::Builder::new(TokioExecutor::new());
        // No stream before the server's SETTINGS, so that its limit is never exceeded.
        builder
            .timer(TokioTimer::new())
            .max_header_list_size(MAX_HEAD_BYTES as u32)
            .initial_max_send_streams(LIMIT_UNKNOWN);
        builder
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(4 * STREAM_WINDOW_BYTES);
        let (sender, mut connection) = builder.handshake(io).await.map_err(io::Error::other)?;
        let load = Arc::<StreamLoad>::default();
        let watched = Arc::clone(&load);
        tokio::spawn(async move {
            // Polled by hand, to read the server's limit after each step.
            let polls = std::future::poll_fn(|cx| {
                let polled = Pin::new(&mut connection).poll(cx);
                watched.set_limit(connection.current_max_send_streams());
                polled
            });
            let _ = polls.await; // its calls got the error
            watched.close();
        });
        Ok((sender, load))
    }

    /// Connects, with a permit that bounds concurrent attempts.
    async fn dial_upstream(&self) -> io::Result<TcpStream> {
        // Bounds the connections in the server's backlog, see the module.
        let _permit = self
            .dial_permits
            .acquire()
            .await
            .expect("this semaphore is never closed");
        for attempt in 0..MAX_DIAL_TRIES {
            // Given up early and tried again: the kernel repeats a dropped SYN only after a second.
            if let Ok(connected) = timeout(
                FIRST_DIAL_TIMEOUT * 2_u32.pow(attempt),
                connect_any(&self.addrs),
            )
            .await
            {
                return connected;
            }
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "it does not accept connections",
        ))
    }
}

/// Connects to the first address that accepts.
///
/// # Errors
/// The error of the last address.
pub(crate) async fn connect_any(addrs: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut fault = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for addr in addrs {
        match TcpStream::connect(addr).await {
            Ok(stream) => {
                // Heads and small bodies would wait for acknowledgements (Nagle's algorithm).
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => fault = io::Error::new(error.kind(), format!("{addr}: {error}")),
        }
    }
    Err(fault)
}
