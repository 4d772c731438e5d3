//! Frames to and from an untrusted watchdog. An oversized frame ends reading, and a slow watchdog
//! delays only its own instance's task.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use nearpath_types::frames::{FrameBuffer, MAX_WATCHDOG_FRAME_BYTES};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
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

    /// Writes a frame that comes with a descriptor, which is closed here.
    pub(super) async fn write_with_descriptor(
        &mut self,
        frame: &[u8],
        descriptor: OwnedFd,
    ) -> io::Result<()> {
        let send = || send_with_descriptor(&self.stream, frame, &descriptor);
        let sent = self.stream.async_io(Interest::WRITABLE, send).await?;
        // The descriptor came with the first byte.
        self.stream.write_all(&frame[sent..]).await
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

fn send_with_descriptor(
    stream: &UnixStream,
    bytes: &[u8],
    descriptor: &OwnedFd,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let fds = [descriptor.as_fd()];
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    let flags = SendFlags::NOSIGNAL;
    Ok(sendmsg(
        stream,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        flags,
    )?)
}
