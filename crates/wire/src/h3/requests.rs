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

use super::answer::Answering;
use super::code;
use super::head::{self, Malformed};
use super::incoming::Incoming;
use super::transport::{self, Side};
use crate::server::Limits;

/// What a head may bring beyond its limit before the stream is stopped: enough to be told 431, which needs the head as a whole.
const BEYOND: u64 = 32 * 1024;

/// A connection ended.
#[derive(Debug, thiserror::Error)]
#[error("the connection ended: {0}")]
pub struct Lost(#[from] ConnectionError);

/// Why a request has no head.
#[derive(Debug, thiserror::Error)]
pub enum Unread {
    /// It is larger than [`Limits::header_bytes`]; the client was told so (431).
    #[error("its head is too large")]
    TooLarge,
    /// It is no request; the stream was reset.
    #[error("it is no request: {0}")]
    Malformed(String),
    /// The client broke off, or its connection ended.
    #[error("it was broken off: {0}")]
    Gone(StreamError),
}

/// See the module's text. Dropped, it closes the connection.
pub struct Requests {
    h3: Connection<transport::Connection, Bytes>,
    side: Rc<RefCell<Option<Side>>>,
    leaving: bool,
}

impl Requests {
    /// Begins HTTP/3 on a connection.
    ///
    /// # Errors
    /// When it has ended.
    pub async fn begin(quic: quinn::Connection, limits: &Limits) -> Result<Self, Lost> {
        let head = limits.header_bytes as u64;
        let (connection, side) = transport::Connection::new(quic, head + BEYOND);
        let mut builder = h3::server::builder();
        let h3 = builder.max_field_section_size(head).send_grease(false).build(connection).await?;
        Ok(Self { h3, side, leaving: false })
    }

    /// The next request; `None`: the client will send no more. Those that come after [`Requests::leave`] are refused so that the
    /// client sends them elsewhere.
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn next(&mut self) -> Result<Option<Opened>, Lost> {
        loop {
            let Some(mut resolver) = self.h3.accept().await? else { return Ok(None) };
            let side = self.side.borrow_mut().take().expect("a request was accepted, and its side is noted then");
            if !self.leaving {
                return Ok(Some(Opened { resolver, side }));
            }
            // `h3` refuses only those that come after the first of them.
            resolver.frame_stream.reset(code::REQUEST_REJECTED.into());
        }
    }

    /// Takes no more requests, and tells the client which was the last (GOAWAY, RFC 9114 section 5.2).
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn leave(&mut self) -> Result<(), Lost> {
        self.leaving = true;
        // One more than the last: GOAWAY names the first request that was not taken, and with 0 `h3` would name the last that was.
        Ok(self.h3.shutdown(1).await?)
    }
}

impl fmt::Debug for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Requests").field("leaving", &self.leaving).finish_non_exhaustive()
    }
}

/// A request of which nothing has been read.
pub struct Opened {
    resolver: RequestResolver<transport::Connection, Bytes>,
    side: Side,
}

impl Opened {
    /// Whether it came before the handshake was complete: somebody may have recorded it and sent it again (RFC 8470).
    pub fn is_early(&self) -> bool {
        self.side.early
    }

    /// Reads its head.
    ///
    /// # Errors
    /// See [`Unread`].
    pub async fn read(self) -> Result<Asked, Unread> {
        let Self { resolver, side: Side { stopped, meter, resolved, .. } } = self;
        let (mut request, stream) = resolver.resolve_request().await.map_err(|error| match error {
            StreamError::HeaderTooBig { .. } => Unread::TooLarge,
            StreamError::StreamError { reason, .. } => Unread::Malformed(reason),
            other => Unread::Gone(other),
        })?;
        resolved.store(true, Ordering::Relaxed);
        let length = head::check(&mut request);
        meter.taken();
        let (send, receive) = stream.split();
        let body = Incoming::new(receive, meter, length.unwrap_or_default());
        Ok(Asked {
            request: request.map(|()| body),
            fault: length.err(),
            answering: Answering::new(send),
            stopped: Stopped(stopped),
        })
    }
}

/// A request whose head was read.
#[derive(Debug)]
pub struct Asked {
    /// The request, whose body is still coming.
    pub request: Request<Incoming>,
    /// Why it must not go on, if so.
    pub fault: Option<Malformed>,
    /// Where its answer goes.
    pub answering: Answering,
    /// Whether anybody waits for that.
    pub stopped: Stopped,
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").field("early", &self.side.early).finish_non_exhaustive()
    }
}

/// Done when the client gave a request up, or has its whole answer.
pub struct Stopped(Pin<Box<dyn Future<Output = ()>>>);

impl Future for Stopped {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}

impl fmt::Debug for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Stopped")
    }
}
