//! Packets, one after the other, while a connection begins or is cleaned.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::frame::packet;

/// Longest packet of a beginning.
const LONGEST: usize = 64 * 1024;

/// One end of it.
pub(super) struct Talk<'a, S> {
    stream: &'a mut S,
    /// Of the next packet.
    number: u8,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Talk<'a, S> {
    /// Whose next packet has this number.
    pub(super) fn new(stream: &'a mut S, number: u8) -> Self {
        Self { stream, number }
    }

    /// The number of the next packet.
    pub(super) fn number(&self) -> u8 {
        self.number
    }

    pub(super) async fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header).await?;
        let length = usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
        if length > LONGEST {
            return Err(no_mysql());
        }
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).await?;
        self.number = header[3].wrapping_add(1);
        Ok(payload)
    }

    pub(super) async fn write(&mut self, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(&packet(self.number, payload)).await?;
        self.stream.flush().await?;
        self.number = self.number.wrapping_add(1);
        Ok(())
    }
}

/// What the other end says is not this protocol.
pub(super) fn no_mysql() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "what it says is not MySQL's protocol: is it MySQL or MariaDB? `protocol=tcp` carries anything",
    )
}
