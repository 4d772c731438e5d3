//! The body of a request on its way to the tenant: as it arrives, or held whole.
//!
//! While the tenant has not begun to answer, a body that stops arriving is the caller's fault and ends in 408. Afterwards
//! silence is normal: both sides may be talking.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Incoming;
use nearpath_types::{PlatformError, Reason};
use tokio::time::{Sleep, sleep};

use crate::body::BoxError;
use crate::refusal::error;

/// The caller fell silent inside a body.
#[derive(Debug, thiserror::Error)]
#[error("the request's body stopped arriving")]
pub(crate) struct Silent;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Inbound {
    kind: Kind,
    patience: Option<Patience>,
}

#[derive(Debug)]
enum Kind {
    Incoming(Incoming),
    Full(Bytes),
}

#[derive(Debug)]
struct Patience {
    limit: Duration,
    silence: Option<Pin<Box<Sleep>>>,
    answered: Answered,
}

/// Set when the tenant has begun to answer.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answered(Arc<AtomicBool>);

impl Answered {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Inbound {
    /// As it arrives; `limit` bounds the caller's silence until `answered`.
    pub(crate) fn arriving(body: Incoming, limit: Option<Duration>, answered: &Answered) -> Self {
        let limit = limit.filter(|_| !body.is_end_stream());
        let patience = limit.map(|limit| Patience { limit, silence: None, answered: answered.clone() });
        Self { kind: Kind::Incoming(body), patience }
    }

    /// Held whole.
    pub(crate) fn full(bytes: Bytes) -> Self {
        Self { kind: Kind::Full(bytes), patience: None }
    }
}

impl Patience {
    fn over(&mut self, cx: &mut Context<'_>) -> bool {
        if self.answered.0.load(Ordering::Relaxed) {
            return false;
        }
        let silence = self.silence.get_or_insert_with(|| Box::pin(sleep(self.limit)));
        silence.as_mut().poll(cx).is_ready()
    }
}

impl Body for Inbound {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        let polled = match &mut this.kind {
            Kind::Full(bytes) if bytes.is_empty() => return Poll::Ready(None),
            Kind::Full(bytes) => return Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Kind::Incoming(body) => Pin::new(body).poll_frame(cx),
        };
        let Some(patience) = &mut this.patience else { return polled.map_err(Into::into) };
        if polled.is_pending() && patience.over(cx) {
            return Poll::Ready(Some(Err(Silent.into())));
        }
        if polled.is_ready() {
            patience.silence = None;
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Full(bytes) => bytes.is_empty(),
            Kind::Incoming(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Incoming(body) => body.size_hint(),
        }
    }
}

/// Holds a whole body of at most `max` bytes.
///
/// # Errors
/// `body_too_large`, `slow_request`, or `bad_request` when the caller broke off.
pub(crate) async fn collect(body: Incoming, max: usize, limit: Option<Duration>) -> Result<Bytes, PlatformError> {
    if body.size_hint().lower() > max as u64 {
        return Err(too_large(max));
    }
    let body = Limited::new(Inbound::arriving(body, limit, &Answered::default()), max);
    match body.collect().await {
        Ok(all) => Ok(all.to_bytes()),
        Err(fault) if fault.is::<LengthLimitError>() => Err(too_large(max)),
        Err(fault) => Err(broken(&*fault)),
    }
}

fn too_large(max: usize) -> PlatformError {
    error(Reason::BodyTooLarge, format!("the request's body is larger than {max} bytes")).governed_by("max_body")
}

/// What a body that failed while it arrived means for the call.
pub(crate) fn broken(fault: &(dyn std::error::Error + 'static)) -> PlatformError {
    if fault.is::<Silent>() {
        return error(Reason::SlowRequest, Silent.to_string()).governed_by("read_timeout");
    }
    error(Reason::BadRequest, format!("the request's body broke off: {fault}"))
}
