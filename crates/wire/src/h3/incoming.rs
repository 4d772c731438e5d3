//! A request's body as it comes.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::server::RequestStream;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

use super::meter::Meter;
use super::transport::RecvStream;

/// Why a body has no end.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// The client gave it up, or its connection ended.
    #[error("the client broke off: {0}")]
    Gone(String),
    /// It is not as long as its head said: malformed (RFC 9114 section 4.1.2).
    #[error("the body is not as long as Content-Length says")]
    Length,
}

/// See the module's text.
pub struct Incoming {
    stream: RequestStream<RecvStream, Bytes>,
    meter: Meter,
    /// Bytes that are still to come, where the head said how many.
    left: Option<u64>,
    /// Looked at, and not given yet.
    first: Option<Bytes>,
    trailers: Option<HeaderMap>,
    at: At,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Data,
    Trailers,
    End,
}

impl Incoming {
    pub(super) fn new(stream: RequestStream<RecvStream, Bytes>, meter: Meter, length: Option<u64>) -> Self {
        Self { stream, meter, left: length, first: None, trailers: None, at: At::Data }
    }

    /// Looks whether there is a body, without taking any of it. A client that sends none says so with the last packet of its head.
    pub fn poll_is_empty(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Broken>> {
        if self.first.is_none() && self.at == At::Data {
            self.first = ready!(self.poll_data(cx))?;
        }
        if self.first.is_none() && self.at == At::Trailers {
            self.trailers = ready!(self.poll_trailers(cx))?;
        }
        Poll::Ready(Ok(self.first.is_none() && self.trailers.is_none())) // trailers alone are a body, too: they have to go on
    }

    /// The next piece; `None`: there is no more, and `at` has moved on.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, Broken>> {
        loop {
            let data = ready!(self.stream.poll_recv_data(cx)).map_err(|error| Broken::Gone(error.to_string()))?;
            let Some(mut data) = data else { break };
            self.meter.taken();
            let data = data.copy_to_bytes(data.remaining());
            if let Some(left) = &mut self.left {
                *left = left.checked_sub(data.len() as u64).ok_or(Broken::Length)?;
            }
            if !data.is_empty() {
                return Poll::Ready(Ok(Some(data)));
            }
        }
        if self.left.is_some_and(|left| left > 0) {
            return Poll::Ready(Err(Broken::Length));
        }
        self.at = At::Trailers;
        Poll::Ready(Ok(None))
    }

    /// What follows the last piece; the body has ended then.
    fn poll_trailers(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<HeaderMap>, Broken>> {
        let trailers = ready!(self.stream.poll_recv_trailers(cx));
        self.at = At::End;
        Poll::Ready(trailers.map_err(|error| Broken::Gone(error.to_string())))
    }
}

impl Body for Incoming {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if self.at == At::Data
            && let Some(data) = ready!(self.poll_data(cx)).transpose()
        {
            return Poll::Ready(Some(data.map(Frame::data)));
        }
        if self.at == At::Trailers {
            self.trailers = match ready!(self.poll_trailers(cx)) {
                Ok(trailers) => trailers,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
        }
        Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.at == At::End && self.first.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.first.as_ref().map_or(0, Bytes::len) as u64;
        match (self.at, self.left) {
            (At::Data, None) => SizeHint::new(),
            (At::Data, Some(left)) => SizeHint::with_exact(first + left),
            _ => SizeHint::with_exact(first),
        }
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("left", &self.left).field("at", &self.at).finish_non_exhaustive()
    }
}
