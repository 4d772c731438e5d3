//! Requests of one connection.

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
use super::transport::{self, RequestStreamInfo};
use crate::server::HttpLimits;

/// Bytes by which a received head may exceed its limit. `h3` needs the whole head to respond with
/// 431.
const HEAD_SLACK_BYTES: u64 = 32 * 1024;

/// Error of a connection that has ended.
#[derive(Debug, thiserror::Error)]
#[error("the connection ended: {0}")]
pub struct Http3ConnectionLost(#[from] ConnectionError);

/// Reasons why a request's head could not be read.
#[derive(Debug, thiserror::Error)]
pub enum RequestReadError {
    /// The head exceeds [`HttpLimits::max_header_bytes`]; the client got 431.
    #[error("request head too large")]
    TooLarge,
    /// The request is malformed; the stream was reset.
    #[error("malformed request: {0}")]
    Malformed(String),
    /// The client reset the stream, or its connection ended.
    #[error("request cancelled: {0}")]
    ClientGone(StreamError),
}

/// Requests of a connection. Dropping it closes the connection.
pub struct Http3Requests {
    h3: Connection<transport::Http3Connection, Bytes>,
    stream_info: Rc<RefCell<Option<RequestStreamInfo>>>,
    is_shutting_down: bool,
}

impl Http3Requests {
    /// Starts HTTP/3 on a connection.
    ///
    /// # Errors
    /// When the connection has ended.
    pub async fn start(
        quic: quinn::Connection,
        limits: &HttpLimits,
    ) -> Result<Self, Http3ConnectionLost> {
        let max_head_bytes = limits.max_header_bytes as u64;
        let (connection, stream_info) =
            transport::Http3Connection::new(quic, max_head_bytes + HEAD_SLACK_BYTES);
        let mut builder = h3::server::builder();
        let h3 = builder
            .max_field_section_size(max_head_bytes)
            .send_grease(false)
            .build(connection)
            .await?;
        Ok(Self {
            h3,
            stream_info,
            is_shutting_down: false,
        })
    }

    /// Returns the next request; `None` when the client sends no more. Rejects requests after
    /// [`Http3Requests::start_shutdown`], so that the client repeats them elsewhere.
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn next_request(&mut self) -> Result<Option<UnreadRequest>, Http3ConnectionLost> {
        loop {
            let Some(mut resolver) = self.h3.accept().await? else {
                return Ok(None);
            };
            let stream_info = self
                .stream_info
                .borrow_mut()
                .take()
                .expect("accepting a request sets its stream info");
            if !self.is_shutting_down {
                return Ok(Some(UnreadRequest {
                    resolver,
                    stream_info,
                }));
            }
            // `h3` accepts the first request after GOAWAY and rejects only later ones.
            resolver
                .frame_stream
                .reset(error_code::REQUEST_REJECTED.into());
        }
    }

    /// Accepts no more requests and announces the last accepted one (GOAWAY, RFC 9114 section 5.2).
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn start_shutdown(&mut self) -> Result<(), Http3ConnectionLost> {
        self.is_shutting_down = true;
        // GOAWAY names the first request that was not accepted. With 0, `h3` would name the last
        // accepted one.
        Ok(self.h3.shutdown(1).await?)
    }
}

impl fmt::Debug for Http3Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http3Requests")
            .field("is_shutting_down", &self.is_shutting_down)
            .finish_non_exhaustive()
    }
}

/// A request whose head was not read yet.
pub struct UnreadRequest {
    resolver: RequestResolver<transport::Http3Connection, Bytes>,
    stream_info: RequestStreamInfo,
}

impl UnreadRequest {
    /// Returns true if the request came before the handshake was complete. It may then be a replay
    /// (RFC 8470).
    pub fn is_early(&self) -> bool {
        self.stream_info.is_early
    }

    /// Reads the request's head.
    ///
    /// # Errors
    /// See [`RequestReadError`].
    pub async fn read_head(self) -> Result<ReceivedRequest, RequestReadError> {
        let Self {
            resolver,
            stream_info:
                RequestStreamInfo {
                    stopped,
                    unread,
                    resolved,
                    faults,
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
        // From here on a dropped response counts as incomplete. Relaxed: the flag guards no other
        // data.
        resolved.store(true, Ordering::Relaxed);
        // A malformed head is returned with its fault, so that the listener can respond with 400.
        let length = match faults.in_head() {
            true => Err(MalformedHead::PseudoHeader),
            false => request_head::check_head(&mut request),
        };
        // The head has consumed a part of the budget; the body starts with all of it.
        unread.reset_budget();
        let (send, receive) = stream.split();
        let body = Http3RequestBody::new(receive, unread, length.unwrap_or_default(), faults);
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
    /// The request with a body that is still being received.
    pub request: Request<Http3RequestBody>,
    /// Reason why the request must not be forwarded.
    pub fault: Option<MalformedHead>,
    /// Sender of the response.
    pub responder: ResponseSender,
    /// Completes when the client no longer waits for the response.
    pub stopped: ResponseStopped,
}

impl fmt::Debug for UnreadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnreadRequest")
            .field("is_early", &self.stream_info.is_early)
            .finish_non_exhaustive()
    }
}

/// Completes when the client cancels the request or has received the whole response. The name is
/// that of `quinn::SendStream::stopped`, which completes in both cases.
pub struct ResponseStopped(Pin<Box<dyn Future<Output = ()>>>);

impl Future for ResponseStopped {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for ResponseStopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseStopped")
    }
}
