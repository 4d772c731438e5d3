//! What a way asks of the relay's connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Sink, Stream};

/// A way sends at most so many bytes in a piece.
pub const MAX_FRAME_BYTES: usize = 32 << 10;

/// What goes over the relay: as a binary and a text frame of WebSocket (`contract/rendezvous.md`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamFrame {
    /// The next bytes.
    Bytes(Bytes),
    /// A [`super::Word`].
    Text(String),
}

/// One side's connection to the relay, which passes pieces on in their order, or breaks. Its end without a word is an error.
///
/// Both halves may be polled from the task that reads and the one that writes; a way gives them a waker for both. Once it
/// needs the connection no more, it closes it, and reads on until the other end has closed it, too. A close ends by itself.
pub trait RelayConnection:
    Stream<Item = io::Result<StreamFrame>> + Sink<StreamFrame, Error = io::Error> + Send + Unpin
{
    /// How many bytes the next piece may have, up to [`MAX_FRAME_BYTES`]; ready when it may have any. Words may go whenever the sink is ready.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_ready(cx).map_ok(|()| MAX_FRAME_BYTES)
    }
}
