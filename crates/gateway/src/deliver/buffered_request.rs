//! Requests with a buffered part of their body. They can be sent again if they provably did not
//! run, and take a place at their function only when they can be sent.

use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http::Request;
use http::request::Parts;
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use nearpath_types::PlatformError;

use super::delivery_errors::{
    broken_body_error, broken_call_error, late_body_error, timeout_error,
};
use super::time_limits::await_within;
use crate::call::GatewayCall;
use crate::function::FunctionEndpoint;
use crate::request::RequestUpload;

/// Bodies of a known length up to this one are collected before sending. They fit into one slot
/// of 64 KiB with their head, and a slow upload occupies no instance.
const MAX_COLLECTED_BYTES: u64 = 64 * 1024 - 4096;

/// Time for the beginning of a stream before its request may take a place. Such a caller may wait
/// for the response before it sends anything.
const STREAM_START_TIMEOUT: Duration = Duration::from_secs(1);

/// Beginning of a body, read before its request takes a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyBeginning {
    /// The body, its first part, or the first message of gRPC.
    Arrived,
    /// Nothing of a stream has come: its caller may wait for the response.
    Awaited,
}

/// Reads the beginning of the call's body, so that a slow caller takes no place at the function.
///
/// A small body is read to its end. If the function's places are limited, the first part of any
/// other body is read, and of gRPC the first message. Callers of streams are waited for during
/// [`STREAM_START_TIMEOUT`] only; gRPC bodies and requests for event streams are such.
///
/// # Errors
/// If the caller left, sent an invalid body, or took too long.
pub(crate) async fn read_ahead_of_admission(
    call: &mut GatewayCall,
) -> Result<BodyBeginning, PlatformError> {
    let Some(mut request) = call.request.take() else {
        return Ok(BodyBeginning::Arrived);
    };
    let is_grpc = call.options.is_grpc;
    let is_stream = is_dialogue(call, request.body());
    let body_progress = call.upload_progress.clone();
    let has_sent_nothing = || {
        let progress = body_progress.as_ref();
        progress.is_some_and(|progress| progress.byte_count() == 0)
    };
    let stop = async {
        if is_stream {
            tokio::time::sleep(STREAM_START_TIMEOUT).await;
        }
        // A message of gRPC that has begun is waited for: only its end is of use to the function.
        if !is_stream || (is_grpc && !has_sent_nothing()) {
            std::future::pending::<()>().await;
        }
    };
    let stop = pin!(stop);
    let read = request
        .body_mut()
        .read_beginning(MAX_COLLECTED_BYTES as usize, stop);
    let progress = call.upload_progress.as_ref();
    let read = await_within(&call.deadlines, call.admitted_at, progress, read).await;
    call.admitted_at = Instant::now(); // the limit for the first byte counts from here
    match read {
        Ok(Ok(is_stopped)) => {
            call.request = Some(request);
            Ok(match is_stopped && has_sent_nothing() {
                true => BodyBeginning::Awaited,
                false => BodyBeginning::Arrived,
            })
        }
        Ok(Err(())) => Err(broken_body_error(call)),
        Err(reason) => Err(late_body_error(call, reason)),
    }
}

/// Returns whether the caller may wait for the response before it sends the rest of the body.
pub(super) fn is_dialogue(call: &GatewayCall, body: &RequestUpload) -> bool {
    let has_length = body.size_hint().exact().is_some();
    call.options.is_grpc || (call.options.wants_stream && !has_length)
}

/// Returns whether [`read_ahead_of_admission`] has anything to read.
pub(crate) fn is_read_ahead_due(call: &GatewayCall) -> bool {
    let Some(request) = call.request.as_ref() else {
        return false;
    };
    let is_small = |bytes: u64| bytes <= MAX_COLLECTED_BYTES && !call.options.is_grpc;
    let length = request.body().size_hint().exact();
    request.body().try_copy().is_none()
        && (length.is_some_and(is_small) || call.route.policy.max_inflight.is_some())
}

/// A request taken out of its call, with the buffered part of its body.
pub(super) struct BufferedRequest {
    pub(super) head: Parts,
    /// First part of the body.
    pub(super) first_chunk: Bytes,
    /// Rest of the body.
    pub(super) remaining: RequestUpload,
    /// No body follows `first_chunk`, so the request can be sent again.
    pub(super) is_complete: bool,
}

impl BufferedRequest {
    /// Takes the request out of the call.
    ///
    /// # Errors
    /// If the caller left, sent an invalid body, or took too long.
    pub(super) async fn take_from(
        call: &mut GatewayCall,
        endpoint: &FunctionEndpoint,
    ) -> Result<Self, PlatformError> {
        let request = call.request.take().expect("an unsent request is put back");
        let (head, mut remaining) = request.into_parts();
        match await_within(
            &call.deadlines,
            call.admitted_at,
            call.upload_progress.as_ref(),
            read_beginning(&mut remaining),
        )
        .await
        {
            Ok(Ok(first_chunk)) => Ok(Self {
                head,
                first_chunk,
                is_complete: remaining.is_end_stream(),
                remaining,
            }),
            Ok(Err(())) => Err(broken_call_error(call, endpoint, None)),
            Err(reason) => Err(timeout_error(call, endpoint, reason)),
        }
    }

    /// Puts the request back into the call.
    pub(super) fn put_back_into(self, call: &mut GatewayCall) {
        call.request = Some(Request::from_parts(
            self.head,
            self.remaining.with_first_chunk(self.first_chunk),
        ));
    }
}

/// Returns a small body completely, or the part of a large one that has arrived. The call's
/// progress holds the error.
async fn read_beginning(body: &mut RequestUpload) -> Result<Bytes, ()> {
    if body
        .size_hint()
        .exact()
        .is_none_or(|bytes| bytes > MAX_COLLECTED_BYTES)
    {
        // Polled once and not awaited: a part that is there saves a message, but a part that is
        // not must not delay the head.
        let frame =
            std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await;
        return match frame {
            Poll::Ready(Some(frame)) => Ok(keep_trailers(frame.map_err(drop)?, body)),
            Poll::Ready(None) | Poll::Pending => Ok(Bytes::new()),
        };
    }
    let mut collected = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let data = keep_trailers(frame.map_err(drop)?, body);
        if body.known_trailers().is_some() {
            break;
        }
        if body.is_end_stream() && collected.is_empty() {
            return Ok(data); // most bodies are one frame, which is not copied
        }
        collected.extend_from_slice(&data);
    }
    Ok(collected.freeze())
}

/// Returns the data of a frame. Trailers become the rest of the body.
fn keep_trailers(frame: Frame<Bytes>, body: &mut RequestUpload) -> Bytes {
    frame.into_data().unwrap_or_else(|trailers| {
        *body = RequestUpload::from_trailers(trailers);
        Bytes::new()
    })
}
