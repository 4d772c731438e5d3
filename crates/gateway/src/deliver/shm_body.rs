//! Response bodies in shared memory, as the function writes them.

use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use nearpath_domain::CallError;
use nearpath_domain::endpoint::BodyReader;
use nearpath_wire::BoxError;

/// Response body that is longer than one message. Dropping it early cancels the function's
/// writes.
pub(crate) struct ShmBody {
    first_chunk: Bytes,
    reader: BodyReader,
    bytes_left: Option<u64>,
}

impl ShmBody {
    pub(super) fn new(first_chunk: Bytes, reader: BodyReader) -> Self {
        Self {
            bytes_left: reader.total_bytes(),
            first_chunk,
            reader,
        }
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, CallError>>> {
        if self.first_chunk.is_empty() {
            self.reader.poll(cx)
        } else {
            Poll::Ready(Some(Ok(std::mem::take(&mut self.first_chunk))))
        }
    }

    pub(super) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.poll_chunk(cx).map(|next| {
            next.map(|part| {
                let part = part?;
                self.bytes_left = self
                    .bytes_left
                    .map(|left| left.saturating_sub(part.len() as u64));
                Ok(Frame::data(part))
            })
        })
    }

    pub(super) fn is_complete(&self) -> bool {
        self.first_chunk.is_empty() && self.reader.is_complete()
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        self.bytes_left
            .map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}
