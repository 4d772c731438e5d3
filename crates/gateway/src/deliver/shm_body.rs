//! The body of an answer in shared memory, as the function writes it.

use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use nearpath_domain::CallError;
use nearpath_domain::endpoint::BodyReader;
use nearpath_wire::BoxError;

/// The body of an answer that is longer than one message. Dropping it before its end tells the function.
pub(crate) struct Parts {
    first: Bytes,
    rest: BodyReader,
    left: Option<u64>,
}

impl Parts {
    pub(super) fn new(first: Bytes, rest: BodyReader) -> Self {
        Self { left: rest.total_bytes(), first, rest }
    }

    fn next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        if self.first.is_empty() { self.rest.poll(cx) } else { Poll::Ready(Some(Ok(std::mem::take(&mut self.first)))) }
    }

    pub(super) fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.next(cx).map(|next| {
            next.map(|part| {
                let part = part?;
                self.left = self.left.map(|left| left.saturating_sub(part.len() as u64));
                Ok(Frame::data(part))
            })
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.first.is_empty() && self.rest.is_complete()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}
