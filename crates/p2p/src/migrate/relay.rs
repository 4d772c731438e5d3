//! Interface of a migrating stream to its relay.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::{Sink, Stream};

/// Largest payload of a frame that a stream sends, in bytes.
pub const MAX_FRAME_BYTES: usize = 32 << 10;

/// Frame of a stream on the relay: a binary or text frame of WebSocket (`contract/rendezvous.md`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamFrame {
    /// The next bytes.
    Bytes(Bytes),
    /// A [`super::SwitchMessage`].
    Text(String),
}

/// A side's connection to the relay, which delivers frames in order or breaks. An end without a
/// message is an error.
///
/// Reading and writing tasks may poll both halves; a stream gives them a waker for both. A stream
/// that needs the connection no longer closes it, and reads until the other end has closed, too. A
/// close completes by itself.
pub trait RelayConnection:
    Stream<Item = io::Result<StreamFrame>> + Sink<StreamFrame, Error = io::Error> + Send + Unpin
{
    /// Returns the largest size of the next frame, up to [`MAX_FRAME_BYTES`]; ready when it is
    /// above 0. Messages may go whenever the sink is ready.
    fn poll_capacity(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        Pin::new(self).poll_ready(cx).map_ok(|()| MAX_FRAME_BYTES)
    }
}
