//! The caller's side of calls on a connection's streams, in the first flight where that is allowed.

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

/// Permission to send a request in the first flight (`zero_rtt` of a function).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyData {
    /// The request waits for the handshake.
    Never,
    /// The request is sent at once, if there is a session.
    Allowed,
}

/// Properties of a call that are not part of HTTP's head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallTerms {
    /// Time for which the caller waits; `None`: unknown.
    pub timeout: Option<Duration>,
    /// Trace id and the parent's span id (W3C Trace Context). Zeros: none.
    pub trace_context: ([u8; 16], [u8; 8]),
}

impl CallerConnection {
    /// Sends a request, and returns when the response begins. The body is sent concurrently until
    /// the response is dropped. Only a request whose body is complete goes in the first flight,
    /// because it can be repeated if the worker rejects the early data. Must run inside a
    /// `LocalSet`.
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
        // an arbitrary body cannot be sent twice; see `call_buffered` for early data
        self.wait_handshake().await?;
        self.call_parts(&head, body, CallTerms::default())
            .await
            .map_err(|(error, _)| error)
    }

    /// Calls with a complete body, so that the request can go in the first flight. See
    /// [`call`](Self::call).
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

    /// Calls with a complete body, and leaves the head to a caller that may repeat the request
    /// elsewhere. See [`call_buffered`](Self::call_buffered).
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
        // Cheap: clones of `Bytes` share the memory.
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
                // the worker discarded it undecrypted, so a repetition is safe
                Err(CallFailure::EarlyDataRejected) => {}
                Err(CallFailure::Final(error)) => return Err(error),
            }
        }
        self.wait_handshake().await?;
        self.try_call(&opening, head, whole(), announced)
            .await
            .map_err(CallFailure::into_error)
    }

    /// Calls once the handshake is complete. The head stays with the caller. The body is returned
    /// if the call was not sent at all. See [`call`](Self::call).
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

    /// Opens a stream and prepares the data to send first.
    async fn open_stream(
        &self,
        opening: &RequestOpening,
        head: &http::request::Parts,
    ) -> Result<CallStream, QuicCallError> {
        // Holds a typical opening and head without growing.
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
            in_flight,
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
                // the response carries the reason of a failure
                let _ = out.send_body(first, body, announced).await;
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
            in_flight,
        }))
    }
}

/// A stream on which nothing was sent.
struct CallStream {
    first: BytesMut,
    send: SendStream,
    receive: RecvStream,
    in_flight: InFlightCall,
}

/// Maximum size of a body that is sent before the response is read. Smaller than any flow-control
/// window.
const MAX_INLINE_BODY_BYTES: u64 = 64 * 1024;

fn request_opening<B: Body>(
    body: &B,
    head: &http::request::Parts,
    terms: CallTerms,
) -> (RequestOpening, bool) {
    let total = body_writer::announced_length(body, &head.headers);
    // 0 means unknown on the wire, so a zero timeout becomes one nanosecond.
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
