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

use super::delivery_errors::{broken, too_late};
use super::time_limits::within;
use crate::call::Call;
use crate::function::Endpoint;
use crate::request::Upload;

/// Bodies of a known length up to this one are collected first: they fit in one slot, and a caller that sends them slowly
/// keeps no function waiting.
const COLLECTED: u64 = 64 * 1024 - 4096;

/// See the module's text.
pub(super) struct Taken {
    pub(super) head: Parts,
    /// What came of the body at first.
    pub(super) first: Bytes,
    /// What follows.
    pub(super) rest: Upload,
    /// Nothing did: it can be sent again.
    pub(super) is_whole: bool,
}

impl Taken {
    /// Takes it out of the call.
    ///
    /// # Errors
    /// When the caller left, sent nonsense, or took too long.
    pub(super) async fn out_of(call: &mut Call, endpoint: &Endpoint) -> Result<Self, PlatformError> {
        let request = call.request.take().expect("an unsent request is put back");
        let (head, mut rest) = request.into_parts();
        match within(&call.clock, call.admitted, call.flow.as_ref(), beginning(&mut rest)).await {
            Ok(Ok(first)) => Ok(Self { head, first, is_whole: rest.is_end_stream(), rest }),
            Ok(Err(())) => Err(broken(call, endpoint, None)),
            Err(reason) => Err(too_late(call, endpoint, reason)),
        }
    }

    /// It is the call's again.
    pub(super) fn put_back(self, call: &mut Call) {
        call.request = Some(Request::from_parts(self.head, self.rest.with_first(self.first)));
    }
}

/// All of a small body; else what is there of it, maybe nothing. What went wrong is in the call's flow.
async fn beginning(body: &mut Upload) -> Result<Bytes, ()> {
    if body.size_hint().exact().is_none_or(|bytes| bytes > COLLECTED) {
        let frame = std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut *body).poll_frame(cx))).await;
        return match frame {
            Poll::Ready(Some(frame)) => frame.map_err(drop).map(|frame| frame.into_data().unwrap_or_default()),
            Poll::Ready(None) | Poll::Pending => Ok(Bytes::new()),
        };
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(drop)?.into_data() {
            if body.is_end_stream() && whole.is_empty() {
                return Ok(data); // most come in one piece
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}
