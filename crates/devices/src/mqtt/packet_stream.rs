//! A connection as packets: read when complete, written within a time limit.

use std::rc::Rc;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::MqttServer;
use super::codec;
use super::packet::{ClientPacket, DisconnectReason, ServerPacket, Version};

/// Largest first packet: its sender is not authenticated yet.
const MAX_FIRST_PACKET: usize = 64 << 10;

/// A client's socket and what was read of the next packet.
pub(super) struct PacketStream {
    pub socket: TcpStream,
    pub buffer: BytesMut,
    pub version: Option<Version>,
    pub server: Rc<MqttServer>,
}

/// The reason for which no packet can be read.
pub(super) enum ReadError {
    Closed,
    Invalid(DisconnectReason),
}

/// The reason for which a packet was not written.
pub(super) enum WriteError {
    Closed,
    TimedOut,
}

impl PacketStream {
    /// Reads the next packet. Cancel safe: bytes of an incomplete packet stay in the buffer.
    pub(super) async fn next_packet(&mut self) -> Result<ClientPacket, ReadError> {
        loop {
            // Until CONNECT is complete the peer is unknown, so less memory is spent on it.
            let limit = self
                .server
                .limits
                .max_packet_bytes
                .min(if self.version.is_none() {
                    MAX_FIRST_PACKET
                } else {
                    usize::MAX
                });
            if let Some(packet) = codec::decode_next(&mut self.buffer, self.version, limit)
                .map_err(ReadError::Invalid)?
            {
                return Ok(packet);
            }
            self.buffer.reserve(1024);
            match self.socket.read_buf(&mut self.buffer).await {
                Ok(0) | Err(_) => return Err(ReadError::Closed),
                Ok(_) => {}
            }
        }
    }

    pub(super) async fn send(&mut self, out: &ServerPacket) -> Result<(), WriteError> {
        // Without a version only a refusal is sent; see `accept_connect`.
        let version = self.version.unwrap_or(Version::V311);
        match codec::encode(out, version) {
            Some(bytes) => self.write(&bytes).await,
            None => Ok(()),
        }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        // A client that reads nothing would otherwise keep its task, queue and slot.
        match timeout(self.server.limits.io_timeout, self.socket.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(WriteError::Closed),
            Err(_) => Err(WriteError::TimedOut),
        }
    }
}
