//! Connections to the tenant's HTTP server: a small pool for HTTP/1.1, one shared connection for h2c.
//!
//! A request is sent again only when hyper hands it back, which proves that no byte of it left. Anything else may have run.

mod pool;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use http::{Request, Response, Version};
use hyper::client::conn::{TrySendError, http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use nearpath_types::{PlatformError, Reason};
use tokio::net::TcpStream;

use crate::body::Body;
use crate::inbound::{Inbound, Silent, broken};
use crate::refusal::error;

use pool::{Leased, Pool};

/// Most header fields of an answer.
const HEADERS: usize = 128;
/// Largest head of an answer in bytes.
const HEAD: usize = 64 * 1024;
/// Bytes of one h2c stream that may be on the way unread, and four times that of a connection.
const WINDOW: u32 = 256 * 1024;
/// How often a request that provably was not sent is tried.
const TRIES: usize = 4;

/// An HTTP/1.1 connection, and its socket for [`pool`] to hurry acknowledgements on.
#[derive(Debug)]
struct Http1 {
    sender: http1::SendRequest<Inbound>,
    socket: OwnedFd,
}

type Http2 = http2::SendRequest<Inbound>;

/// Why a try failed; with the request, if it was not sent.
type Failed = (PlatformError, Option<Request<Inbound>>);

/// The tenant's server.
#[derive(Debug)]
pub(crate) struct Upstream {
    addrs: Vec<SocketAddr>,
    pool: Arc<Pool>,
    shared: Mutex<Option<Http2>>,
}

impl Upstream {
    pub(crate) fn new(addrs: Vec<SocketAddr>) -> Self {
        Self { addrs, pool: Arc::default(), shared: Mutex::default() }
    }

    /// Sends a request and waits for the answer's head. The request's version chooses the protocol.
    ///
    /// # Errors
    /// `function_failed` when there is no connection or it broke; what the request's own body did wrong.
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
        let pooled = self.pool.take().filter(|_| !fresh);
        let mut connection = match pooled {
            Some(connection) => connection,
            None => self.dial_http1().await.map_err(|fault| (unreachable_server(&fault), None))?,
        };
        match connection.sender.try_send_request(request).await {
            Ok(response) => Ok(response.map(|body| Body::stream(Leased::new(body, connection, &self.pool)))),
            Err(fault) => Err(explain(fault)),
        }
    }

    async fn send_http2(&self, request: Request<Inbound>) -> Result<Response<Body>, Failed> {
        let known = self.shared().clone().filter(|sender| !sender.is_closed());
        let mut sender = match known {
            Some(sender) => sender,
            None => {
                let sender = self.dial_http2().await.map_err(|fault| (unreachable_server(&fault), None))?;
                self.shared().insert(sender).clone()
            }
        };
        sender.try_send_request(request).await.map(|response| response.map(Body::stream)).map_err(explain)
    }

    fn shared(&self) -> std::sync::MutexGuard<'_, Option<Http2>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn dial_http1(&self) -> io::Result<Http1> {
        let stream = connect(&self.addrs).await?;
        let socket = stream.as_fd().try_clone_to_owned()?;
        let mut http1 = http1::Builder::new();
        let handshake = http1.max_headers(HEADERS).max_buf_size(HEAD).handshake(TokioIo::new(stream)).await;
        let (sender, connection) = handshake.map_err(io::Error::other)?;
        tokio::spawn(connection.with_upgrades());
        Ok(Http1 { sender, socket })
    }

    async fn dial_http2(&self) -> io::Result<Http2> {
        let io = TokioIo::new(connect(&self.addrs).await?);
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).max_header_list_size(HEAD as u32);
        builder.initial_stream_window_size(WINDOW).initial_connection_window_size(4 * WINDOW);
        let (sender, connection) = builder.handshake(io).await.map_err(io::Error::other)?;
        tokio::spawn(connection);
        Ok(sender)
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

fn unreachable_server(fault: &io::Error) -> PlatformError {
    error(Reason::FunctionFailed, format!("the tenant's server cannot be reached: {fault}")).governed_by("upstream_url")
}

fn explain(mut fault: TrySendError<Request<Inbound>>) -> Failed {
    let request = fault.take_message();
    let fault = fault.into_error();
    let body = std::error::Error::source(&fault).filter(|source| fault.is_user() || source.is::<Silent>());
    let error = match body {
        Some(source) => broken(source),
        None => error(Reason::FunctionFailed, format!("the tenant's server broke the connection: {}", chain(&fault))),
    };
    (error, request)
}

fn chain(fault: &dyn std::error::Error) -> String {
    match fault.source() {
        Some(source) => format!("{fault}: {}", chain(source)),
        None => fault.to_string(),
    }
}
