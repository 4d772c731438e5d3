//! The requests of one connection.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use h3::error::{ConnectionError, StreamError};
use h3::quic::SendStream as _;
use h3::server::{Connection, RequestResolver};
use http::Request;

use super::error_code;
use super::request_body::Http3RequestBody;
use super::request_head::{self, MalformedHead};
use super::response_sender::ResponseSender;
use super::transport::{self, RequestSide};
use crate::server::HttpLimits;

/// What a head may bring beyond its limit before the stream is stopped: enough to be told 431, which needs the head as a whole.
const HEAD_SLACK_BYTES: u64 = 32 * 1024;

/// A connection ended.
#[derive(Debug, thiserror::Error)]
#[error("the connection ended: {0}")]
pub struct Http3ConnectionLost(#[from] ConnectionError);

/// Why a request has no head.
#[derive(Debug, thiserror::Error)]
pub enum RequestReadError {
    /// It is larger than [`HttpLimits::max_header_bytes`]; the client was told so (431).
    #[error("its head is too large")]
    TooLarge,
    /// It is no request; the stream was reset.
    #[error("it is no request: {0}")]
    Malformed(String),
    /// The client broke off, or its connection ended.
    #[error("it was broken off: {0}")]
    ClientGone(StreamError),
}

/// See the module's text. Dropped, it closes the connection.
pub struct Http3Requests {
    h3: Connection<transport::Http3Connection, Bytes>,
    side: Rc<RefCell<Option<RequestSide>>>,
    is_shutting_down: bool,
}

impl Http3Requests {
    /// Begins HTTP/3 on a connection.
    ///
    /// # Errors
    /// When it has ended.
    pub async fn start(
        quic: quinn::Connection,
        limits: &HttpLimits,
    ) -> Result<Self, Http3ConnectionLost> {
        let head = limits.max_header_bytes as u64;
        let (connection, side) = transport::Http3Connection::new(quic, head + HEAD_SLACK_BYTES);
        let mut builder = h3::server::builder();
        let h3 = builder
            .max_field_section_size(head)
            .send_grease(false)
            .build(connection)
            .await?;
        Ok(Self {
            h3,
            side,
            is_shutting_down: false,
        })
    }

    /// The next request; `NoConnection`: the client will send no more. Those that come after [`Http3Requests::leave`] are refused so that the
    /// client sends them elsewhere.
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn next_request(&mut self) -> Result<Option<UnreadRequest>, Http3ConnectionLost> {
        loop {
            let Some(mut resolver) = self.h3.accept().await? else {
                return Ok(None);
            };
            let side = self
                .side
                .borrow_mut()
                .take()
                .expect("a request was accepted, and its side is noted then");
            if !self.is_shutting_down {
                return Ok(Some(UnreadRequest { resolver, side }));
            }
            // `h3` refuses only those that come after the first of them.
            resolver
                .frame_stream
                .reset(error_code::REQUEST_REJECTED.into());
        }
    }

    /// Takes no more requests, and tells the client which was the last (GOAWAY, RFC 9114 section 5.2).
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn start_shutdown(&mut self) -> Result<(), Http3ConnectionLost> {
        self.is_shutting_down = true;
        // One more than the last: GOAWAY names the first request that was not taken, and with 0 `h3` would name the last that was.
        Ok(self.h3.shutdown(1).await?)
    }
}

impl fmt::Debug for Http3Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests")
            .field("leaving", &self.is_shutting_down)
            .finish_non_exhaustive()
    }
}

/// A request of which nothing has been read.
pub struct UnreadRequest {
    resolver: RequestResolver<transport::Http3Connection, Bytes>,
    side: RequestSide,
}

impl UnreadRequest {
    /// Whether it came before the handshake was complete: somebody may have recorded it and sent it again (RFC 8470).
    pub fn is_early(&self) -> bool {
        self.side.early
    }

    /// Reads its head.
    ///
    /// # Errors
    /// See [`RequestReadError`].
    pub async fn read_head(self) -> Result<ReceivedRequest, RequestReadError> {
        let Self {
            resolver,
            side:
                RequestSide {
                    stopped,
                    unread: meter,
                    resolved,
                    ..
                },
        } = self;
        let (mut request, stream) =
            resolver
                .resolve_request()
                .await
                .map_err(|error| match error {
                    StreamError::HeaderTooBig { .. } => RequestReadError::TooLarge,
                    StreamError::StreamError { reason, .. } => RequestReadError::Malformed(reason),
                    other => RequestReadError::ClientGone(other),
                })?;
        resolved.store(true, Ordering::Relaxed);
        let length = request_head::check_head(&mut request);
        meter.reset_budget();
        let (send, receive) = stream.split();
        let body = Http3RequestBody::new(receive, meter, length.unwrap_or_default());
        Ok(ReceivedRequest {
            request: request.map(|()| body),
            fault: length.err(),
            responder: ResponseSender::new(send),
            stopped: ResponseStopped(stopped),
        })
    }
}

/// A request whose head was read.
#[derive(Debug)]
pub struct ReceivedRequest {
    /// The request, whose body is still coming.
    pub request: Request<Http3RequestBody>,
    /// Why it must not go on, if so.
    pub fault: Option<MalformedHead>,
    /// Where its answer goes.
    pub responder: ResponseSender,
    /// Whether anybody waits for that.
    pub stopped: ResponseStopped,
}

impl fmt::Debug for UnreadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened")
            .field("early", &self.side.early)
            .finish_non_exhaustive()
    }
}

/// Done when the client gave a request up, or has its whole answer.
pub struct ResponseStopped(Pin<Box<dyn Future<Output = ()>>>);

impl Future for ResponseStopped {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for ResponseStopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopped")
    }
}
