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

use crate::arrival::{Arrival, TooLarge};
use crate::body::BoxError;
use crate::refusal::error;
use crate::upstream::Stream;

/// The caller fell silent inside a body.
#[derive(Debug, thiserror::Error)]
#[error("the request's body stopped arriving")]
pub(crate) struct Silent;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Inbound {
    kind: Kind,
    watched: Option<Watched>,
    stream: Option<Arc<Stream>>,
}

#[derive(Debug)]
enum Kind {
    Arrival(Arrival),
    Full(Bytes),
}

/// A body whose caller is held to account.
#[derive(Debug)]
struct Watched {
    upload: Upload,
    limit: Option<Duration>,
    silence: Option<Pin<Box<Sleep>>>,
}

/// What a call's two ends know of its request: the body says when it is waited for, the mode when the answer has begun.
#[derive(Debug, Clone, Default)]
pub(crate) struct Upload(Arc<State>);

#[derive(Debug, Default)]
struct State {
    awaited: AtomicBool,
    answered: AtomicBool,
}

impl Upload {
    /// The tenant has begun to answer.
    pub(crate) fn answered(&self) {
        self.0.answered.store(true, Ordering::Relaxed);
    }

    /// Whether the rest of the body is waited for, and so it is the caller who holds the call up. A body that has not arrived
    /// because the tenant does not take what is there is not waited for.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.awaited.load(Ordering::Relaxed)
    }
}

impl Inbound {
    /// As it arrives; `limit` bounds the caller's silence until the answer begins.
    pub(crate) fn arriving(body: Arrival, limit: Option<Duration>, upload: &Upload) -> Self {
        let watched = (!body.is_end_stream()).then(|| Watched { upload: upload.clone(), limit, silence: None });
        Self { kind: Kind::Arrival(body), watched, stream: None }
    }

    /// As it arrives, where the caller's silence is part of the conversation.
    pub(crate) fn conversing(body: Arrival) -> Self {
        Self { kind: Kind::Arrival(body), watched: None, stream: None }
    }

    /// Held whole.
    pub(crate) fn full(bytes: Bytes) -> Self {
        Self { kind: Kind::Full(bytes), watched: None, stream: None }
    }

    /// Keeps an HTTP/2 stream's place until the body is gone: a stream is open until both of its directions have ended.
    pub(crate) fn keep(&mut self, stream: Arc<Stream>) {
        self.stream = Some(stream);
    }
}

impl From<Bytes> for Inbound {
    fn from(whole: Bytes) -> Self {
        Self::full(whole)
    }
}

impl Watched {
    /// Takes note of a poll; whether the caller has been silent too long.
    fn too_silent(&mut self, pending: bool, cx: &mut Context<'_>) -> bool {
        self.upload.0.awaited.store(pending, Ordering::Relaxed);
        if !pending {
            self.silence = None;
            return false;
        }
        let Some(limit) = self.limit.filter(|_| !self.upload.0.answered.load(Ordering::Relaxed)) else { return false };
        self.silence.get_or_insert_with(|| Box::pin(sleep(limit))).as_mut().poll(cx).is_ready()
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
            Kind::Arrival(body) => Pin::new(body).poll_frame(cx),
        };
        if let Some(watched) = &mut this.watched
            && watched.too_silent(polled.is_pending(), cx)
        {
            return Poll::Ready(Some(Err(Silent.into())));
        }
        polled.map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Full(bytes) => bytes.is_empty(),
            Kind::Arrival(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Kind::Arrival(body) => body.size_hint(),
        }
    }
}

/// Holds a whole body of at most `max` bytes.
///
/// # Errors
/// `body_too_large`, `slow_request`, or `bad_request` when the caller broke off.
pub(crate) async fn collect(
    body: Arrival,
    max: usize,
    limit: Option<Duration>,
    upload: &Upload,
) -> Result<Bytes, PlatformError> {
    if body.size_hint().lower() > max as u64 {
        return Err(too_large(max));
    }
    let body = Limited::new(Inbound::arriving(body, limit, upload), max);
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
    if fault.is::<TooLarge>() {
        return error(Reason::BodyTooLarge, TooLarge.to_string()).governed_by("nearpath.io/max-body");
    }
    error(Reason::BadRequest, format!("the request's body broke off: {fault}"))
}
