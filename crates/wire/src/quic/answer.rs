//! An answer, and what its call holds until its end.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use tokio::task::AbortHandle;

use super::body::{BodyError, Incoming};
use super::frame::Answered;
use super::rest::Load;
use super::upload::Outgoing;
use crate::BoxError;

/// One call that is under way.
#[derive(Debug)]
pub(super) struct Busy(Arc<Load>);

impl Busy {
    pub(super) fn of(load: &Arc<Load>) -> Self {
        load.begin();
        Self(Arc::clone(load))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// The request's body, while the answer is read.
#[derive(Debug)]
pub(super) struct Upload(AbortHandle);

impl Upload {
    pub(super) fn of<B>(mut out: Outgoing, first: BytesMut, body: B, announced: bool) -> Self
    where
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<BoxError>,
    {
        let sending = async move {
            let _ = out.send(first, body, announced).await; // the answer tells why
        };
        Self(tokio::task::spawn_local(sending).abort_handle())
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body of an answer. Dropped before its end, it tells the worker that nobody waits.
#[derive(Debug)]
pub struct Answer {
    pub(super) incoming: Incoming<Answered>,
    pub(super) answered: Answered,
    pub(super) early: bool,
    pub(super) _upload: Option<Upload>,
    pub(super) busy: Busy,
}

impl Answer {
    /// What was said beside HTTP's head.
    pub fn answered(&self) -> &Answered {
        &self.answered
    }

    /// Whether its request went in the first flight, and was taken.
    pub fn was_early(&self) -> bool {
        self.early
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.incoming).poll_frame(cx);
        frame.map_err(|error| this.busy.0.explain(error))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
