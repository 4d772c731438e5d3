//! Frames to and from a watchdog, which is not believed: a frame that is too long ends the hearing, and nothing that it does
//! makes anybody wait but its own instance's task.

use std::io;
use std::os::fd::OwnedFd;

use nearpath_types::frames::{LONGEST_BACK, Pieces};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// What is read at a time.
const READ: usize = 4 << 10;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    pieces: Pieces,
}

impl Line {
    /// # Errors
    /// When it is no stream socket.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let stream = std::os::unix::net::UnixStream::from(socket);
        stream.set_nonblocking(true)?;
        Ok(Self { stream: UnixStream::from_std(stream)?, pieces: Pieces::up_to(LONGEST_BACK) })
    }

    /// Writes a whole frame. A watchdog that does not read holds up what is for itself alone.
    pub(super) async fn write(&mut self, frame: &[u8]) -> io::Result<()> {
        self.stream.write_all(frame).await
    }

    /// The next frame, without its length; nothing when the watchdog has gone. Who stops waiting loses nothing.
    ///
    /// # Errors
    /// When it is too long, or broken off.
    pub(super) async fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if let Some(frame) = self.pieces.whole()? {
                return Ok(Some(frame));
            }
            match self.stream.read_buf(self.pieces.room(READ)).await? {
                0 if self.pieces.is_empty() => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
    }
}
