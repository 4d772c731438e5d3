//! A connection as packets: read as they are complete, written within the client's patience.

use std::rc::Rc;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::House;
use super::codec;
use super::packet::{End, In, Out, Version};

/// Largest first packet: nothing is known about its sender yet.
const FIRST_PACKET: usize = 64 << 10;

/// A connection's bytes.
pub(super) struct Line {
    pub stream: TcpStream,
    pub read: BytesMut,
    pub version: Option<Version>,
    pub house: Rc<House>,
}

/// Why there is no next packet.
pub(super) enum Heard {
    Gone,
    Wrong(End),
}

/// Why nothing could be said.
pub(super) enum Mute {
    Gone,
    Stuck,
}

impl Line {
    /// The next packet. May be dropped while it waits: nothing is lost.
    pub(super) async fn next(&mut self) -> Result<In, Heard> {
        loop {
            let limit = self.house.limits.packet.min(if self.version.is_none() { FIRST_PACKET } else { usize::MAX });
            if let Some(packet) = codec::next(&mut self.read, self.version, limit).map_err(Heard::Wrong)? {
                return Ok(packet);
            }
            self.read.reserve(1024);
            match self.stream.read_buf(&mut self.read).await {
                Ok(0) | Err(_) => return Err(Heard::Gone),
                Ok(_) => {}
            }
        }
    }

    pub(super) async fn say(&mut self, out: &Out) -> Result<(), Mute> {
        let version = self.version.unwrap_or(Version::V311);
        match codec::encode(out, version) {
            Some(bytes) => self.write(&bytes).await,
            None => Ok(()),
        }
    }

    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), Mute> {
        match timeout(self.house.limits.patience, self.stream.write_all(bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Mute::Gone),
            Err(_) => Err(Mute::Stuck),
        }
    }
}
