//! Body of a response that streams from a function's own server.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use nearpath_wire::BoxError;

use super::body_decoder::{BodyDecoder, DecodedPart};
use super::pooled_connection::PooledConnection;
use super::response_head::ResponseHead;

/// Pieces up to this length are joined, in memory of their own. Alone they would cost a frame and a
/// write each, and keep the buffer that they were read into while a slow caller takes them.
const MAX_JOINED_BYTES: usize = 8 * 1024;

/// Body with its connection, which is kept for another request after the last byte.
pub(crate) struct Http1Body {
    /// `None` after the end.
    connection: Option<PooledConnection>,
    decoder: BodyDecoder,
    keeps_alive: bool,
}

impl Http1Body {
    pub(super) fn new(connection: PooledConnection, head: &ResponseHead) -> Self {
        Self {
            connection: Some(connection),
            decoder: BodyDecoder::new(head.framing),
            keeps_alive: head.keeps_alive,
        }
    }

    pub(crate) fn poll_frame(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let polled = self.poll_data(cx);
        if self.decoder.has_ended() {
            self.end_response();
        } else if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.connection = None;
        }
        polled.map(|data| data.map(|data| data.map(Frame::data)))
    }

    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, BoxError>>> {
        let Some(connection) = &mut self.connection else {
            return Poll::Ready(None);
        };
        loop {
            match self
                .decoder
                .decode_joined(&mut connection.buffer, MAX_JOINED_BYTES)
            {
                Ok(DecodedPart::Data(data)) => return Poll::Ready(Some(Ok(data))),
                Ok(DecodedPart::End) => return Poll::Ready(None),
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
                Ok(DecodedPart::Incomplete) => {}
            }
            let read = connection.poll_read_more(cx);
            if read.is_pending() {
                connection.acknowledge_now();
            }
            match ready!(read) {
                Ok(0) if self.decoder.ends_with_connection() => return Poll::Ready(None),
                Ok(0) => {
                    let error = io::Error::from(io::ErrorKind::UnexpectedEof);
                    return Poll::Ready(Some(Err(error.into())));
                }
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    fn end_response(&mut self) {
        if let Some(connection) = self.connection.take().filter(|_| self.keeps_alive) {
            connection.put_back();
        }
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.connection.is_none() || self.decoder.has_ended()
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.decoder
            .bytes_left()
            .map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}
