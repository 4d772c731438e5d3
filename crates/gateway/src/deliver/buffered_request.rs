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
use crate::function::InstanceEndpoint;
use crate::request::RequestUpload;

/// Bodies of a known length up to this one are collected before sending. They fit into one slot
/// of 64 KiB with their head, and a slow upload occupies no instance.
const MAX_COLLECTED_BYTES: u64 = 64 * 1024 - 4096;

/// Time for a body of unknown length before its request takes a place. Such a caller may wait for
/// the response before it sends the rest.
const UNKNOWN_LENGTH_TIMEOUT: Duration = Duration::from_secs(1);

/// Reads the beginning of the call's body, so that a slow caller takes no place at the function.
///
/// A small body is read to its end. Of a larger one, or one of unknown length, the first part is
/// read if the function's places are limited. gRPC bodies are streams, whose callers may wait for
/// the response.
///
/// # Errors
/// If the caller left, sent an invalid body, or took too long.
pub(crate) async fn read_ahead_of_admission(call: &mut GatewayCall) -> Result<(), PlatformError> {
    let Some(mut request) = call.request.take() else {
        return Ok(());
    };
    let length = request.body().size_hint().exact();
    let stop = async {
        match length {
            Some(_) => std::future::pending().await,
            None => tokio::time::sleep(UNKNOWN_LENGTH_TIMEOUT).await,
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
        Ok(Ok(())) => {
            call.request = Some(request);
            Ok(())
        }
        Ok(Err(())) => Err(broken_body_error(call)),
        Err(reason) => Err(late_body_error(call, reason)),
    }
}

/// Returns whether [`read_ahead_of_admission`] has anything to read.
pub(crate) fn is_read_ahead_due(call: &GatewayCall) -> bool {
    let Some(request) = call.request.as_ref().filter(|_| !call.options.is_grpc) else {
        return false;
    };
    let is_small = |bytes: u64| bytes <= MAX_COLLECTED_BYTES;
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
        endpoint: &InstanceEndpoint,
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
