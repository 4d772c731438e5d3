//! Packets in sequence, for logins and cleanups.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::frame::encode_packet;

/// The longest packet of a login or cleanup, in bytes.
const MAX_PACKET_BYTES: usize = 64 * 1024;

/// An end of a connection during its login or cleanup.
pub(super) struct MysqlConnection<'a, S> {
    stream: &'a mut S,
    /// Sequence id of the next packet.
    sequence_id: u8,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> MysqlConnection<'a, S> {
    /// Wraps a stream whose next packet has this sequence id.
    pub(super) fn new(stream: &'a mut S, sequence_id: u8) -> Self {
        Self {
            stream,
            sequence_id,
        }
    }

    /// Returns the sequence id of the next packet.
    pub(super) fn sequence_id(&self) -> u8 {
        self.sequence_id
    }

    pub(super) async fn read_packet(&mut self) -> io::Result<Vec<u8>> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header).await?;
        let length =
            usize::from(header[0]) | usize::from(header[1]) << 8 | usize::from(header[2]) << 16;
        // The length comes from the network before any login, so it must not decide how much memory
        // is reserved.
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

/// Returns the error for a server that does not speak MySQL's protocol.
pub(super) fn not_mysql_error() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        "the server does not speak MySQL's protocol; use `protocol=tcp` for other protocols",
    )
}
