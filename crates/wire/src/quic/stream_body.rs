//! A body as it comes from a stream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use quinn::{ReadError, RecvStream};
use tokio::io::ReadBuf;

use super::close_code;
use super::frame::{CallOpening, FrameDecoder, FrameError, StreamPiece};
use super::http_heads;

/// Bytes that are read at a time, unless more are known to come.
const READ_BYTES: usize = 4 * 1024;
/// Most bytes that are read at a time.
const MAX_READ_BYTES: usize = 64 * 1024;

/// Why a body, or a head, did not come to its end.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StreamBodyError {
    /// The stream or the connection broke.
    #[error("{}", describe_read_error(.0))]
    Stream(#[from] ReadError),
    /// Nothing came any more, not even word that what was sent has arrived.
    #[error("nothing came over UDP for {0:?}, though something was sent")]
    Stalled(Duration),
    /// What came is not as `contract/quic.md` says.
    #[error("{0}")]
    InvalidFrame(#[from] FrameError),
}

/// quinn says of a connection only that it was lost; what matters is why: a peer that is not admitted is told so there.
fn describe_read_error(error: &ReadError) -> String {
    match error {
        ReadError::ConnectionLost(why) => format!("connection lost: {why}"),
        other => other.to_string(),
    }
}

/// The rest of a call's request, or of its answer. When it is dropped before its end, the peer is told that nobody reads on.
#[derive(Debug)]
pub struct StreamBody<O: CallOpening> {
    stream: RecvStream,
    decoder: FrameDecoder<O>,
    has_ended: bool,
}

impl<O: CallOpening> StreamBody<O> {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self {
            stream,
            decoder: FrameDecoder::new(),
            has_ended: false,
        }
    }

    /// The opening and the head, which come first.
    pub(super) async fn read_opening(&mut self) -> Result<(O, Bytes), StreamBodyError> {
        match std::future::poll_fn(|cx| self.poll_piece(cx)).await {
            Some(Ok(StreamPiece::Opening(opening, head))) => {
                std::future::poll_fn(|cx| {
                    self.peek_end(cx);
                    Poll::Ready(())
                })
                .await;
                Ok((opening, head))
            }
            Some(Ok(_)) | None => Err(FrameError::Truncated.into()),
            Some(Err(error)) => Err(error),
        }
    }

    /// A body whose announced length is there is over now, so that nobody has to ask for its end; which mostly came with it, and
    /// is taken, so that the peer need not be told that nobody reads on.
    fn peek_end(&mut self, cx: &mut Context<'_>) {
        if self.decoder.remaining() == Some(0) && self.decoder.buffer_mut().is_empty() {
            self.has_ended = !matches!(self.poll_read(cx), Poll::Ready(Ok(1..) | Err(_)));
        }
    }

    fn poll_piece(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<StreamPiece<O>, StreamBodyError>>> {
        loop {
            match self.decoder.next_piece() {
                Ok(Some(piece)) => return Poll::Ready(Some(Ok(piece))),
                Ok(None) => {}
                Err(fault) => return Poll::Ready(Some(Err(self.fail_body(fault)))),
            }
            match ready!(self.poll_read(cx)) {
                Ok(0) => return Poll::Ready(self.finish_body()),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, ReadError>> {
        let want = self.decoder.remaining().map_or(READ_BYTES, |left| {
            (left as usize).clamp(READ_BYTES, MAX_READ_BYTES)
        });
        let buffer: &mut BytesMut = self.decoder.buffer_mut();
        let before = buffer.len();
        buffer.resize(before + want, 0);
        let mut unfilled = ReadBuf::new(&mut buffer[before..]);
        let read = self
            .stream
            .poll_read_buf(cx, &mut unfilled)
            .map_ok(|()| unfilled.filled().len());
        let filled = if let Poll::Ready(Ok(filled)) = read {
            filled
        } else {
            0
        };
        buffer.truncate(before + filled);
        read
    }

    fn finish_body(&mut self) -> Option<Result<StreamPiece<O>, StreamBodyError>> {
        self.has_ended = true;
        self.decoder
            .check_end()
            .err()
            .map(|fault| Err(fault.into()))
    }

    fn fail_body(&mut self, fault: FrameError) -> StreamBodyError {
        self.has_ended = true;
        let _ = self.stream.stop(close_code::PROTOCOL_FAULT); // it may have ended already
        fault.into()
    }
}

impl<O: CallOpening + Unpin> Body for StreamBody<O> {
    type Data = Bytes;
    type Error = StreamBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, StreamBodyError>>> {
        let this = self.get_mut();
        if this.has_ended {
            return Poll::Ready(None);
        }
        let piece = match ready!(this.poll_piece(cx)) {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => {
                this.has_ended = true;
                return Poll::Ready(Some(Err(error)));
            }
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(match piece {
            StreamPiece::Data(data) => {
                this.peek_end(cx);
                Ok(Frame::data(data))
            }
            StreamPiece::Trailers(trailers) => http_heads::parse_headers(&trailers)
                .map(Frame::trailers)
                .map_err(|fault| this.fail_body(fault)),
            StreamPiece::Opening(..) => Err(this.fail_body(FrameError::Truncated)),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.has_ended
    }

    fn size_hint(&self) -> SizeHint {
        self.decoder
            .remaining()
            .map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl<O: CallOpening> Drop for StreamBody<O> {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.stream.stop(close_code::CANCELLED); // it may have ended already
        }
    }
}
