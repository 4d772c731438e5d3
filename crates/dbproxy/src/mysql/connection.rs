//! Packets, one after the other, while a connection begins or is cleaned.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::frame::encode_packet;

/// Longest packet of a beginning.
const MAX_PACKET_BYTES: usize = 64 * 1024;

/// One end of it.
pub(super) struct MysqlConnection<'a, S> {
    stream: &'a mut S,
    /// Of the next packet.
    sequence_id: u8,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> MysqlConnection<'a, S> {
    /// Whose next packet has this number.
    pub(super) fn new(stream: &'a mut S, sequence_id: u8) -> Self {
        Self {
            stream,
            sequence_id,
        }
    }

    /// The number of the next packet.
    pub(super) fn sequence_id(&self) -> u8 {
        self.sequence_id
    }

    pub(super) async fn read_packet(&mut self) -> io::Result<Vec<u8>> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header).await?;
        let length =
            usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
        if length > MAX_PACKET_BYTES {
            return Err(not_mysql_error());
        }
        let mut payload = vec![0; length];
        self.stream.read_exact(&mut payload).await?;
        self.sequence_id = header[3].wrapping_add(1);
        Ok(payload)
    }

    pub(super) async fn write_packet(&mut self, payload: &[u8]) -> io::Result<()> {
        self.stream
            .write_all(&encode_packet(self.sequence_id, payload))
            .await?;
        self.stream.flush().await?;
        self.sequence_id = self.sequence_id.wrapping_add(1);
        Ok(())
    }
}

/// What the other end says is not this protocol.
pub(super) fn not_mysql_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "what it says is not MySQL's protocol: is it MySQL or MariaDB? `protocol=tcp` carries anything",
    )
}
