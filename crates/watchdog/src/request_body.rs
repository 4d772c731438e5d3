//! Body of a request on its way to the tenant: as it arrives, or buffered whole.
//!
//! Until the tenant begins to respond, a body that stops arriving is the caller's fault and ends in
//! 408. So does a call whose time ends while its body is awaited. Afterwards silence is normal:
//! both sides may be talking.

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

/// Error of a body whose caller stopped sending.
#[derive(Debug, thiserror::Error)]
#[error("the request's body stopped arriving")]
pub(crate) struct UploadStalled;

/// Body of a request for the tenant, with a monitor of the caller's silence.
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

/// Monitor of a body whose caller must keep sending.
#[derive(Debug)]
struct UploadMonitor {
    upload: UploadState,
    limit: Option<Duration>,
    stall_timer: Option<Pin<Box<Sleep>>>,
}

/// State of a call's upload, shared by its two ends: the body sets that it is awaited, the mode
/// that the response has begun.
#[derive(Debug, Clone, Default)]
pub(crate) struct UploadState(Arc<UploadFlags>);

#[derive(Debug, Default)]
struct UploadFlags {
    awaited: AtomicBool,
    answered: AtomicBool,
}

impl UploadState {
    /// Records that the tenant has begun to respond.
    pub(crate) fn mark_answered(&self) {
        self.0.answered.store(true, Ordering::Relaxed);
    }

    /// Returns whether the call waits for the rest of the body, so that the caller delays it. A
    /// body that the tenant does not read is not awaited.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.awaited.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    /// Body as it arrives; `limit` bounds the caller's silence until the response begins.
    pub(crate) fn monitored(
        body: IncomingBody,
        limit: Option<Duration>,
        upload: &UploadState,
    ) -> Self {
        // A body that has ended already cannot stall.
        let monitor = (!body.is_end_stream()).then(|| UploadMonitor {
            upload: upload.clone(),
            limit,
            stall_timer: None,
        });
        Self {
            content: RequestContent::Incoming(body),
            monitor,
            stream_permit: None,
        }
    }

    /// Body as it arrives, without a limit on silence: pauses are part of the protocol, as in gRPC.
    pub(crate) fn unmonitored(body: IncomingBody) -> Self {
        Self {
            content: RequestContent::Incoming(body),
            monitor: None,
            stream_permit: None,
        }
    }

    /// Body that was buffered whole.
    pub(crate) fn buffered(bytes: Bytes) -> Self {
        Self {
            content: RequestContent::Full(bytes),
            monitor: None,
            stream_permit: None,
        }
    }

    /// Holds an HTTP/2 stream's permit until the body is dropped: a stream is open until both
    /// directions have ended.
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
    /// Records a poll. Returns whether the caller has been silent for too long.
    fn is_stalled(&mut self, pending: bool, cx: &mut Context<'_>) -> bool {
        // Relaxed, as all accesses here: one thread polls and reads, and the flags guard no other
        // data.
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
        // Armed by the first poll that has to wait, so that only uninterrupted silence counts.
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
        // After the poll: bytes at hand are no silence, however late they come.
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

/// Buffers a whole body of at most `max` bytes.
///
/// # Errors
/// `body_too_large`, `slow_request`, or `bad_request` when the body broke off.
pub(crate) async fn collect_body(
    body: IncomingBody,
    max: usize,
    limit: Option<Duration>,
    upload: &UploadState,
) -> Result<Bytes, PlatformError> {
    // A declared length above the limit is refused before anything is read.
    if body.size_hint().lower() > max as u64 {
        return Err(body_too_large(max));
    }
    // The limit counts bytes as well, because a chunked body declares no length.
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

/// Returns the error for a body that failed while it arrived.
pub(crate) fn body_error(fault: &(dyn std::error::Error + 'static)) -> PlatformError {
    // Told apart by type, because another setting governs each of them.
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
