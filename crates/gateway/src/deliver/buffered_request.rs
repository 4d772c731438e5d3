//! A request that was taken out of its call with as much of its body as can be held, so that it can be sent again where it provably did not
//! run.

use std::pin::Pin;
use std::task::Poll;

use bytes::{Bytes, BytesMut};
use http::Request;
use http::request::Parts;
use http_body::Body;
use http_body_util::BodyExt;
use nearpath_types::PlatformError;

use super::delivery_errors::{broken_call_error, timeout_error};
use super::time_limits::await_within;
use crate::call::GatewayCall;
use crate::function::InstanceEndpoint;
use crate::request::RequestUpload;

/// Bodies of a known length up to this one are collected first: they fit in one slot, and a caller that sends them slowly
/// keeps no function waiting.
const MAX_COLLECTED_BYTES: u64 = 64 * 1024 - 4096;

/// See the module's text.
pub(super) struct BufferedRequest {
    pub(super) head: Parts,
    /// What came of the body at first.
    pub(super) first_chunk: Bytes,
    /// What follows.
    pub(super) remaining: RequestUpload,
    /// Nothing did: it can be sent again.
    pub(super) is_complete: bool,
}

impl BufferedRequest {
    /// Takes it out of the call.
    ///
    /// # Errors
    /// When the caller left, sent nonsense, or took too long.
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

    /// It is the call's again.
    pub(super) fn put_back_into(self, call: &mut GatewayCall) {
        call.request = Some(Request::from_parts(
            self.head,
            self.remaining.with_first_chunk(self.first_chunk),
        ));
    }
}

/// All of a small body; else what is there of it, maybe nothing. What went wrong is in the call's flow.
async fn read_beginning(body: &mut RequestUpload) -> Result<Bytes, ()> {
    if body
        .size_hint()
        .exact()
        .is_none_or(|bytes| bytes > MAX_COLLECTED_BYTES)
    {
        let frame =
            std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await;
        return match frame {
            Poll::Ready(Some(frame)) => frame
                .map_err(drop)
                .map(|frame| frame.into_data().unwrap_or_default()),
            Poll::Ready(None) | Poll::Pending => Ok(Bytes::new()),
        };
    }
    let mut collected = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(drop)?.into_data() {
            if body.is_end_stream() && collected.is_empty() {
                return Ok(data); // most come in one piece
            }
            collected.extend_from_slice(&data);
        }
    }
    Ok(collected.freeze())
}
