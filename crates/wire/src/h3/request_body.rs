//! Body of a request while it is received.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h3::error::Code;
use h3::server::RequestStream;
use http::header::{CONTENT_LENGTH, HeaderMap, HeaderName};
use http_body::{Body, Frame, SizeHint};

use super::pseudo_header_scan::PseudoHeaderFaults;
use super::request_head::is_connection_header;
use super::transport::Http3RecvStream;
use super::unread_limit::UnreadLimit;

/// Reasons why a body did not end properly.
#[derive(Debug, thiserror::Error)]
pub enum RequestBodyError {
    /// The client reset the stream, or its connection ended.
    #[error("the client cancelled the request: {0}")]
    ClientGone(String),
    /// The length differs from Content-Length: malformed (RFC 9114 section 4.1.2).
    #[error("the body length differs from Content-Length")]
    WrongLength,
    /// The trailers have a pseudo-header field, or a field that frames the message (RFC 9114
    /// sections 4.2 and 4.3, RFC 9110 section 6.5.1).
    #[error("invalid field in the trailers: a pseudo-header field, or one that frames the message")]
    InvalidTrailers,
    /// The stream ended inside a frame (RFC 9114 section 7.1).
    #[error("the body ended inside a DATA frame")]
    CutFrame,
}

impl RequestBodyError {
    /// Returns whether the request is malformed (RFC 9114 section 4.1.2), and its client has not
    /// just left.
    pub fn is_malformed(&self) -> bool {
        !matches!(self, Self::ClientGone(_))
    }
}

/// Body that is read from a request's stream.
pub struct Http3RequestBody {
    stream: RequestStream<Http3RecvStream, Bytes>,
    unread: UnreadLimit,
    /// Bytes still to come, if the head declared the length.
    remaining: Option<u64>,
    /// Data that was received while looking for a body, and not yet returned.
    peeked: Option<Bytes>,
    trailers: Option<HeaderMap>,
    faults: PseudoHeaderFaults,
    phase: BodyPhase,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyPhase {
    Data,
    Trailers,
    End,
}

impl Http3RequestBody {
    pub(super) fn new(
        stream: RequestStream<Http3RecvStream, Bytes>,
        unread: UnreadLimit,
        length: Option<u64>,
        faults: PseudoHeaderFaults,
    ) -> Self {
        Self {
            stream,
            unread,
            remaining: length,
            peeked: None,
            trailers: None,
            faults,
            phase: BodyPhase::Data,
        }
    }

    /// Returns true if there is no body, without consuming any of it. A client without a body ends
    /// the stream with the head's last packet.
    pub fn poll_is_empty(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, RequestBodyError>> {
        if self.peeked.is_none() && self.phase == BodyPhase::Data {
            self.peeked = ready!(self.poll_data(cx))?;
        }
        if self.peeked.is_none() && self.phase == BodyPhase::Trailers {
            self.trailers = ready!(self.poll_trailers(cx))?;
        }
        // trailers alone must be forwarded, too
        Poll::Ready(Ok(self.peeked.is_none() && self.trailers.is_none()))
    }

    /// Returns the next piece; `None` at the end of the data, when `phase` has advanced.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RequestBodyError>> {
        loop {
            let data = ready!(self.stream.poll_recv_data(cx))
                .map_err(|error| RequestBodyError::ClientGone(error.to_string()))?;
            let Some(mut data) = data else { break };
            // Before the data is returned: reading is what restores the budget.
            self.unread.reset_budget();
            let data = data.copy_to_bytes(data.remaining());
            if let Some(left) = self.remaining {
                let left = left.checked_sub(data.len() as u64);
                self.remaining =
                    Some(left.ok_or_else(|| self.refuse(RequestBodyError::WrongLength))?);
            }
            if !data.is_empty() {
                return Poll::Ready(Ok(Some(data)));
            }
        }
        if self.remaining.is_some_and(|left| left > 0) {
            return Poll::Ready(Err(self.refuse(RequestBodyError::WrongLength)));
        }
        // `h3` would panic on the next read.
        if self.faults.in_last_frame() {
            return Poll::Ready(Err(self.refuse(RequestBodyError::CutFrame)));
        }
        self.phase = BodyPhase::Trailers;
        Poll::Ready(Ok(None))
    }

    /// Returns the trailers, after which the body has ended.
    fn poll_trailers(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<HeaderMap>, RequestBodyError>> {
        let trailers = ready!(self.stream.poll_recv_trailers(cx));
        // Also after an error: the stream must not be polled again.
        self.phase = BodyPhase::End;
        let trailers = trailers.map_err(|error| RequestBodyError::ClientGone(error.to_string()))?;
        let frames_message =
            |name: &HeaderName| is_connection_header(name) || *name == CONTENT_LENGTH;
        let mut fields = trailers.iter().flat_map(HeaderMap::keys);
        if self.faults.in_trailers() || fields.any(frames_message) {
            return Poll::Ready(Err(self.refuse(RequestBodyError::InvalidTrailers)));
        }
        Poll::Ready(Ok(trailers))
    }

    /// Ends the stream with the error of a malformed request (RFC 9114 section 4.1.2).
    fn refuse(&mut self, error: RequestBodyError) -> RequestBodyError {
        self.phase = BodyPhase::End;
        self.stream.stop_sending(Code::H3_MESSAGE_ERROR);
        error
    }
}

impl Body for Http3RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        if let Some(first) = self.peeked.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        if self.phase == BodyPhase::Data
            && let Some(data) = ready!(self.poll_data(cx)).transpose()
        {
            return Poll::Ready(Some(data.map(Frame::data)));
        }
        if self.phase == BodyPhase::Trailers {
            self.trailers = match ready!(self.poll_trailers(cx)) {
                Ok(trailers) => trailers,
                Err(error) => return Poll::Ready(Some(Err(error))),
            };
        }
        Poll::Ready(
            self.trailers
                .take()
                .map(|trailers| Ok(Frame::trailers(trailers))),
        )
    }

    fn is_end_stream(&self) -> bool {
        self.phase == BodyPhase::End && self.peeked.is_none() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let first = self.peeked.as_ref().map_or(0, Bytes::len) as u64;
        match (self.phase, self.remaining) {
            (BodyPhase::Data, None) => SizeHint::new(),
            (BodyPhase::Data, Some(left)) => SizeHint::with_exact(first + left),
            _ => SizeHint::with_exact(first),
        }
    }
}

impl fmt::Debug for Http3RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("left", &self.remaining)
            .field("at", &self.phase)
            .finish_non_exhaustive()
    }
}
