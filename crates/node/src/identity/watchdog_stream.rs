//! Frames to and from an untrusted watchdog. An oversized frame ends reading, and a slow watchdog
//! delays only its own instance's task.

use std::io;
use std::os::fd::OwnedFd;

use nearpath_types::frames::{FrameBuffer, MAX_WATCHDOG_FRAME_BYTES};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Bytes per read.
const READ_BYTES: usize = 4 << 10;

/// A stream of frames.
#[derive(Debug)]
pub(super) struct WatchdogStream {
    stream: UnixStream,
    pieces: FrameBuffer,
}

impl WatchdogStream {
    /// Wraps the node's end of an identity socket.
    ///
    /// # Errors
    /// Fails when it is not a stream socket.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let stream = std::os::unix::net::UnixStream::from(socket);
        // tokio requires it, and `UnixStream::from_std` does not set it.
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: UnixStream::from_std(stream)?,
            pieces: FrameBuffer::with_limit(MAX_WATCHDOG_FRAME_BYTES),
        })
    }

    /// Writes a whole frame. A watchdog that does not read delays only its own frames.
    pub(super) async fn write_frame(&mut self, frame: &[u8]) -> io::Result<()> {
        self.stream.write_all(frame).await
    }

    /// Returns the next frame without its length; `None` at the end of the stream. Cancellation
    /// loses nothing.
    ///
    /// # Errors
    /// Fails when a frame is too long or truncated.
    pub(super) async fn next_frame(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(frame) = self.pieces.next_frame()? {
                return Ok(Some(frame));
            }
            match self
                .stream
                .read_buf(self.pieces.reserve(READ_BYTES))
                .await?
            {
                0 if self.pieces.is_empty() => return Ok(None),
                // The watchdog died inside a frame; between two frames an end is orderly.
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
    }
}
