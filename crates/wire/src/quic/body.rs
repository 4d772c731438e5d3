//! A body as it comes from a stream.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use quinn::{ReadError, RecvStream};
use tokio::io::ReadBuf;

use super::code;
use super::frame::{Decoder, Fault, Opening, Piece};
use super::heads;

/// Bytes that are read at a time, unless more are known to come.
const READ: usize = 4 * 1024;
/// Most bytes that are read at a time.
const READ_MOST: usize = 64 * 1024;

/// Why a body, or a head, did not come to its end.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BodyError {
    /// The stream or the connection broke.
    #[error("{}", why(.0))]
    Stream(#[from] ReadError),
    /// Nothing came any more, not even word that what was sent has arrived.
    #[error("nothing came over UDP for {0:?}, though something was sent")]
    Silent(Duration),
    /// What came is not as `contract/quic.md` says.
    #[error("{0}")]
    Fault(#[from] Fault),
}

/// quinn says of a connection only that it was lost; what matters is why: a peer that is not admitted is told so there.
fn why(error: &ReadError) -> String {
    match error {
        ReadError::ConnectionLost(why) => format!("connection lost: {why}"),
        other => other.to_string(),
    }
}

/// The rest of a call's request, or of its answer. When it is dropped before its end, the peer is told that nobody reads on.
#[derive(Debug)]
pub struct Incoming<O: Opening> {
    stream: RecvStream,
    decoder: Decoder<O>,
    ended: bool,
}

impl<O: Opening> Incoming<O> {
    pub(super) fn new(stream: RecvStream) -> Self {
        Self { stream, decoder: Decoder::new(), ended: false }
    }

    /// The opening and the head, which come first.
    pub(super) async fn opening(&mut self) -> Result<(O, Bytes), BodyError> {
        match std::future::poll_fn(|cx| self.poll_piece(cx)).await {
            Some(Ok(Piece::Opening(opening, head))) => {
                std::future::poll_fn(|cx| {
                    self.peek(cx);
                    Poll::Ready(())
                })
                .await;
                Ok((opening, head))
            }
            Some(Ok(_)) | None => Err(Fault::Cut.into()),
            Some(Err(error)) => Err(error),
        }
    }

    /// A body whose announced length is there is over now, so that nobody has to ask for its end; which mostly came with it, and
    /// is taken, so that the peer need not be told that nobody reads on.
    fn peek(&mut self, cx: &mut Context<'_>) {
        if self.decoder.left() == Some(0) && self.decoder.held().is_empty() {
            self.ended = !matches!(self.poll_read(cx), Poll::Ready(Ok(1..) | Err(_)));
        }
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Piece<O>, BodyError>>> {
        loop {
            match self.decoder.piece() {
                Ok(Some(piece)) => return Poll::Ready(Some(Ok(piece))),
                Ok(None) => {}
                Err(fault) => return Poll::Ready(Some(Err(self.fail(fault)))),
            }
            match ready!(self.poll_read(cx)) {
                Ok(0) => return Poll::Ready(self.end()),
                Ok(_) => {}
                Err(error) => return Poll::Ready(Some(Err(error.into()))),
            }
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<usize, ReadError>> {
        let want = self.decoder.left().map_or(READ, |left| (left as usize).clamp(READ, READ_MOST));
        let held: &mut BytesMut = self.decoder.held();
        let before = held.len();
        held.resize(before + want, 0);
        let mut room = ReadBuf::new(&mut held[before..]);
        let read = self.stream.poll_read_buf(cx, &mut room).map_ok(|()| room.filled().len());
        let filled = if let Poll::Ready(Ok(filled)) = read { filled } else { 0 };
        held.truncate(before + filled);
        read
    }

    fn end(&mut self) -> Option<Result<Piece<O>, BodyError>> {
        self.ended = true;
        self.decoder.end().err().map(|fault| Err(fault.into()))
    }

    fn fail(&mut self, fault: Fault) -> BodyError {
        self.ended = true;
        let _ = self.stream.stop(code::FAULT); // it may have ended already
        fault.into()
    }
}

impl<O: Opening + Unpin> Body for Incoming<O> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(None);
        }
        let piece = match ready!(this.poll_piece(cx)) {
            Some(Ok(piece)) => piece,
            Some(Err(error)) => {
                this.ended = true;
                return Poll::Ready(Some(Err(error)));
            }
            None => return Poll::Ready(None),
        };
        Poll::Ready(Some(match piece {
            Piece::Data(data) => {
                this.peek(cx);
                Ok(Frame::data(data))
            }
            Piece::Trailers(trailers) => {
                heads::headers(&trailers).map(Frame::trailers).map_err(|fault| this.fail(fault))
            }
            Piece::Opening(..) => Err(this.fail(Fault::Cut)),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.ended
    }

    fn size_hint(&self) -> SizeHint {
        self.decoder.left().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl<O: Opening> Drop for Incoming<O> {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.stream.stop(code::CANCELLED); // it may have ended already
        }
    }
}
