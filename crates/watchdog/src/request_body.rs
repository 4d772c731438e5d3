//! The body of a request on its way to the tenant: as it arrives, or held whole.
//!
//! While the tenant has not begun to answer, a body that stops arriving is the caller's fault and ends in 408; so does a call
//! whose time is over while its body is waited for. Afterwards silence is normal: both sides may be talking.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use nearpath_types::{PlatformError, Reason};
use tokio::time::{Sleep, sleep};

use crate::errors::watchdog_error;
use crate::incoming_body::{IncomingBody, RequestTooLarge};
use crate::response_body::AnyError;
use crate::upstream::StreamPermit;

/// The caller fell silent inside a body.
#[derive(Debug, thiserror::Error)]
#[error("the request's body stopped arriving")]
pub(crate) struct UploadStalled;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct RequestBody {
    content: RequestContent,
    monitor: Option<UploadMonitor>,
    stream_permit: Option<Arc<StreamPermit>>,
}

#[derive(Debug)]
enum RequestContent {
    Incoming(IncomingBody),
    Full(Bytes),
}

/// A body whose caller is held to account.
#[derive(Debug)]
struct UploadMonitor {
    upload: UploadState,
    limit: Option<Duration>,
    stall_timer: Option<Pin<Box<Sleep>>>,
}

/// What a call's two ends know of its request: the body says when it is waited for, the mode when the answer has begun.
#[derive(Debug, Clone, Default)]
pub(crate) struct UploadState(Arc<UploadFlags>);

#[derive(Debug, Default)]
struct UploadFlags {
    awaited: AtomicBool,
    answered: AtomicBool,
}

impl UploadState {
    /// The tenant has begun to answer.
    pub(crate) fn mark_answered(&self) {
        self.0.answered.store(true, Ordering::Relaxed);
    }

    /// Whether the rest of the body is waited for, and so it is the caller who holds the call up. A body that has not arrived
    /// because the tenant does not take what is there is not waited for.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.awaited.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    /// As it arrives; `limit` bounds the caller's silence until the answer begins.
    pub(crate) fn monitored(
        body: IncomingBody,
        limit: Option<Duration>,
        upload: &UploadState,
    ) -> Self {
        let monitor = (!body.is_end_stream()).then(|| UploadMonitor {
            upload: upload.clone(),
            limit,
            stall_timer: None,
        });
        Self {
            content: RequestContent::Incoming(body),
            monitor: monitor,
            stream_permit: None,
        }
    }

    /// As it arrives, where the caller's silence is part of the conversation.
    pub(crate) fn unmonitored(body: IncomingBody) -> Self {
        Self {
            content: RequestContent::Incoming(body),
            monitor: None,
            stream_permit: None,
        }
    }

    /// Held whole.
    pub(crate) fn buffered(bytes: Bytes) -> Self {
        Self {
            content: RequestContent::Full(bytes),
            monitor: None,
            stream_permit: None,
        }
    }

    /// Keeps an HTTP/2 stream's place until the body is gone: a stream is open until both of its directions have ended.
    pub(crate) fn hold_stream(&mut self, stream_permit: Arc<StreamPermit>) {
        self.stream_permit = Some(stream_permit);
    }
}

impl From<Bytes> for RequestBody {
    fn from(whole: Bytes) -> Self {
        Self::buffered(whole)
    }
}

impl UploadMonitor {
    /// Takes note of a poll; whether the caller has been silent too long.
    fn is_stalled(&mut self, pending: bool, cx: &mut Context<'_>) -> bool {
        self.upload.0.awaited.store(pending, Ordering::Relaxed);
        if !pending {
            self.stall_timer = None;
            return false;
        }
        let Some(limit) = self
            .limit
            .filter(|_| !self.upload.0.answered.load(Ordering::Relaxed))
        else {
            return false;
        };
        self.stall_timer
            .get_or_insert_with(|| Box::pin(sleep(limit)))
            .as_mut()
            .poll(cx)
            .is_ready()
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = AnyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, AnyError>>> {
        let this = &mut *self;
        let polled = match &mut this.content {
            RequestContent::Full(bytes) if bytes.is_empty() => return Poll::Ready(None),
            RequestContent::Full(bytes) => {
                return Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes)))));
            }
            RequestContent::Incoming(body) => Pin::new(body).poll_frame(cx),
        };
        if let Some(monitor) = &mut this.monitor
            && monitor.is_stalled(polled.is_pending(), cx)
        {
            return Poll::Ready(Some(Err(UploadStalled.into())));
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            RequestContent::Full(bytes) => bytes.is_empty(),
            RequestContent::Incoming(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            RequestContent::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            RequestContent::Incoming(body) => body.size_hint(),
        }
    }
}

/// Holds a whole body of at most `max` bytes.
///
/// # Errors
/// `body_too_large`, `slow_request`, or `bad_request` when the caller broke off.
pub(crate) async fn collect_body(
    body: IncomingBody,
    max: usize,
    limit: Option<Duration>,
    upload: &UploadState,
) -> Result<Bytes, PlatformError> {
    if body.size_hint().lower() > max as u64 {
        return Err(body_too_large(max));
    }
    let body = Limited::new(RequestBody::monitored(body, limit, upload), max);
    match body.collect().await {
        Ok(all) => Ok(all.to_bytes()),
        Err(fault) if fault.is::<LengthLimitError>() => Err(body_too_large(max)),
        Err(fault) => Err(body_error(&*fault)),
    }
}

fn body_too_large(max: usize) -> PlatformError {
    watchdog_error(
        Reason::BodyTooLarge,
        format!("the request's body is larger than {max} bytes"),
    )
    .governed_by("max_body")
}

/// What a body that failed while it arrived means for the call.
pub(crate) fn body_error(fault: &(dyn std::error::Error + 'static)) -> PlatformError {
    if fault.is::<UploadStalled>() {
        return watchdog_error(Reason::SlowRequest, UploadStalled.to_string())
            .governed_by("read_timeout");
    }
    if fault.is::<RequestTooLarge>() {
        return watchdog_error(Reason::BodyTooLarge, RequestTooLarge.to_string())
            .governed_by("nearpath.io/max-body");
    }
    watchdog_error(
        Reason::BadRequest,
        format!("the request's body broke off: {fault}"),
    )
}
