//! Frames to and from a watchdog, which is not believed: a frame that is too long ends the hearing, and nothing that it does
//! makes anybody wait but its own instance's task.

use std::io;
use std::os::fd::OwnedFd;

use nearpath_types::frames::LONGEST_BACK;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// What is read at a time.
const READ: usize = 4 << 10;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    held: Vec<u8>,
}

impl Line {
    /// # Errors
    /// When it is no stream socket.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        let stream = std::os::unix::net::UnixStream::from(socket);
        stream.set_nonblocking(true)?;
        Ok(Self { stream: UnixStream::from_std(stream)?, held: Vec::new() })
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
            if let Some(frame) = self.whole()? {
                return Ok(Some(frame));
            }
            self.held.reserve(READ);
            match self.stream.read_buf(&mut self.held).await? {
                0 if self.held.is_empty() => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
    }

    fn whole(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(length) = self.held.first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > LONGEST_BACK {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
        }
        if self.held.len() < 4 + length {
            return Ok(None);
        }
        let rest = self.held.split_off(4 + length);
        let frame = std::mem::replace(&mut self.held, rest);
        Ok(Some(frame[4..].to_vec()))
    }
}
