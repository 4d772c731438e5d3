//! A body that is read from a stream.

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

/// Bytes that are read at a time, unless the length is known.
const READ_BYTES: usize = 4 * 1024;
/// Maximum number of bytes that are read at a time.
const MAX_READ_BYTES: usize = 64 * 1024;

/// Reasons why a body or a head is incomplete.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StreamBodyError {
    /// The stream or the connection failed.
    #[error("{}", describe_read_error(.0))]
    Stream(#[from] ReadError),
    /// Nothing was received for this time, not even an acknowledgement.
    #[error("no UDP packet received for {0:?} although data was sent")]
    Stalled(Duration),
    /// The data does not follow `contract/quic.md`.
    #[error("{0}")]
    InvalidFrame(#[from] FrameError),
}

/// Adds the reason to a lost connection, which quinn's text leaves out. A refused peer gets its
/// reason there.
fn describe_read_error(error: &ReadError) -> String {
    match error {
        ReadError::ConnectionLost(why) => format!("connection lost: {why}"),
        other => other.to_string(),
    }
}

/// Rest of a request or response. Dropping it before its end tells the peer to stop sending.
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

    /// Reads the opening and the head, which come first.
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
            // The decoder yields the opening first, so anything else means a truncated stream.
            Some(Ok(_)) | None => Err(FrameError::Truncated.into()),
            Some(Err(error)) => Err(error),
        }
    }

    /// Ends a body whose announced length is complete, so that no further read is needed. The end
    /// of the stream has mostly arrived with it; it is read, so that the peer is not told to stop
    /// sending.
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
        // A known length is read in larger pieces; the rest of a short body fits the smallest.
        let want = self.decoder.remaining().map_or(READ_BYTES, |left| {
            (left as usize).clamp(READ_BYTES, MAX_READ_BYTES)
        });
        let buffer: &mut BytesMut = self.decoder.buffer_mut();
        let before = buffer.len();
        // `ReadBuf::new` takes initialised memory; unused bytes are cut off below.
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
        let _ = self.stream.stop(close_code::PROTOCOL_FAULT); // fails only if the stream has ended
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
            // The decoder yields one opening only, which `read_opening` consumed.
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
            let _ = self.stream.stop(close_code::CANCELLED); // fails only if the stream has ended
        }
    }
}
