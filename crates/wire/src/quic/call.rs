//! The caller's side: calls on a line's streams, in its first flight where they may go there.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, Response};
use http_body::Body;
use quinn::{RecvStream, SendStream};

use super::body_writer::{self, StreamBodyWriter};
use super::call_error::{CallFailure, QuicCallError};
use super::caller_connection::CallerConnection;
use super::frame::{RequestOpening, ResponseOpening};
use super::http_heads;
use super::response::{InFlightCall, QuicResponseBody, UploadGuard};
use super::stream_body::StreamBody;
use crate::BoxError;

/// Whether a request may go in the first flight (`zero_rtt` of a function).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyData {
    /// It waits for the handshake.
    Never,
    /// It goes at once, if there is a session.
    Allowed,
}

/// What a call says of itself beside HTTP's head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallTerms {
    /// How long the caller will wait; `NoConnection`: it does not say.
    pub timeout: Option<Duration>,
    /// Trace id and the parent's span id (W3C Trace Context); zeros: none.
    pub trace_context: ([u8; 16], [u8; 8]),
}

impl CallerConnection {
    /// Calls: sends the request, and returns when the answer begins. The body goes on beside it, until the answer is dropped.
    /// In the first flight goes only what could be sent again if the worker does not take it: a request whose body is
    /// there as a whole. Must run inside a `LocalSet`.
    ///
    /// # Errors
    /// See [`QuicCallError`].
    pub async fn call<B>(
        &self,
        request: Request<B>,
        early: EarlyData,
    ) -> Result<Response<QuicResponseBody>, QuicCallError>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let (head, body) = request.into_parts();
        let empty = body.is_end_stream();
        if self.is_early() && empty {
            return self
                .call_buffered_parts(&head, Bytes::new(), early, CallTerms::default())
                .await;
        }
        self.wait_handshake().await?; // a body that can be repeated is made so by the caller: `call_whole`
        self.call_parts(&head, body, CallTerms::default())
            .await
            .map_err(|(error, _)| error)
    }

    /// As [`call`](Self::call), with a body that is there as a whole, so that it can go in the first flight.
    ///
    /// # Errors
    /// See [`QuicCallError`].
    pub async fn call_buffered(
        &self,
        request: Request<Bytes>,
        early: EarlyData,
    ) -> Result<Response<QuicResponseBody>, QuicCallError> {
        let (head, body) = request.into_parts();
        self.call_buffered_parts(&head, body, early, CallTerms::default())
            .await
    }

    /// As [`call_buffered`](Self::call_whole), and leaves the request with who may have to make it elsewhere.
    ///
    /// # Errors
    /// See [`QuicCallError`].
    pub async fn call_buffered_parts(
        &self,
        head: &http::request::Parts,
        body: Bytes,
        early: EarlyData,
        terms: CallTerms,
    ) -> Result<Response<QuicResponseBody>, QuicCallError> {
        let whole = || http_body_util::Full::new(body.clone());
        let (opening, announced) = request_opening(&whole(), head, terms);
        if self.is_early() && early == EarlyData::Allowed {
            match self.try_call(&opening, head, whole(), announced).await {
                Ok(answer) => {
                    return Ok(answer.map(|answer| QuicResponseBody {
                        was_early: true,
                        ..answer
                    }));
                }
                Err(CallFailure::EarlyDataRejected) => {} // the worker did not decrypt it
                Err(CallFailure::Final(error)) => return Err(error),
            }
        }
        self.wait_handshake().await?;
        self.try_call(&opening, head, whole(), announced)
            .await
            .map_err(CallFailure::into_error)
    }

    /// As [`call`](Self::call), once the handshake is complete. The head stays with the caller; the body is given back when the call was not
    /// made at all.
    ///
    /// # Errors
    /// See [`QuicCallError`].
    pub async fn call_parts<B>(
        &self,
        head: &http::request::Parts,
        body: B,
        terms: CallTerms,
    ) -> Result<Response<QuicResponseBody>, (QuicCallError, Option<B>)>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let (opening, announced) = request_opening(&body, head, terms);
        match self.open_stream(&opening, head).await {
            Ok(opened) => self
                .exchange(opened, body, announced)
                .await
                .map_err(|failed| (failed.into_error(), None)),
            Err(error) => Err((error, Some(body))),
        }
    }

    async fn try_call<B>(
        &self,
        opening: &RequestOpening,
        head: &http::request::Parts,
        body: B,
        announced: bool,
    ) -> Result<Response<QuicResponseBody>, CallFailure>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let opened = self.open_stream(opening, head).await?;
        self.exchange(opened, body, announced).await
    }

    /// A stream, and what is to be sent on it first.
    async fn open_stream(
        &self,
        opening: &RequestOpening,
        head: &http::request::Parts,
    ) -> Result<CallStream, QuicCallError> {
        let mut first = BytesMut::with_capacity(512);
        http_heads::write_request_head(opening, head, &mut first)?;
        let (send, receive) = self
            .connection()
            .open_bi()
            .await
            .map_err(|error| QuicCallError::NotRun(error.to_string()))?;
        Ok(CallStream {
            first,
            send,
            receive,
            in_flight: InFlightCall::start(&self.in_flight),
        })
    }

    async fn exchange<B>(
        &self,
        opened: CallStream,
        body: B,
        announced: bool,
    ) -> Result<Response<QuicResponseBody>, CallFailure>
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let CallStream {
            first,
            send,
            receive,
            in_flight: busy,
        } = opened;
        let (mut out, mut incoming) = (
            StreamBodyWriter::new(send),
            StreamBody::<ResponseOpening>::new(receive),
        );
        let upload = match body.is_end_stream()
            || body
                .size_hint()
                .exact()
                .is_some_and(|size| size <= MAX_INLINE_BODY_BYTES)
        {
            true => {
                let _ = out.send_body(first, body, announced).await; // the answer tells why
                None
            }
            false => Some(UploadGuard::spawn(out, first, body, announced)),
        };
        let (opening, head) = incoming
            .read_opening()
            .await
            .map_err(|error| self.classify_failure(error))?;
        let response = http_heads::parse_response(&opening, &head)
            .map_err(|fault| CallFailure::classify(fault.into()))?;
        Ok(response.map(|()| QuicResponseBody {
            body: incoming,
            opening,
            was_early: false,
            _upload: upload,
            in_flight: busy,
        }))
    }
}

/// A stream that nothing was sent on.
struct CallStream {
    first: BytesMut,
    send: SendStream,
    receive: RecvStream,
    in_flight: InFlightCall,
}

/// Bytes of a body that is sent before the answer is looked for: less than any window.
const MAX_INLINE_BODY_BYTES: u64 = 64 * 1024;

fn request_opening<B: Body>(
    body: &B,
    head: &http::request::Parts,
    terms: CallTerms,
) -> (RequestOpening, bool) {
    let total = body_writer::announced_length(body, &head.headers);
    let timeout_nanos = terms.timeout.map_or(0, |time| {
        u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
    });
    let opening = RequestOpening {
        is_event: false,
        body_length: total,
        timeout_nanos,
        trace_id: terms.trace_context.0,
        span_id: terms.trace_context.1,
    };
    (opening, total != super::frame::UNKNOWN_LENGTH)
}
