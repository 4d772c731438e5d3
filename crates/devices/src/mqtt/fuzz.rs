//! Packets decoded from bytes and encoded again, for the fuzz target.

use bytes::BytesMut;

use super::codec::{decode_next, encode};
use super::packet::{ClientPacket, ServerPacket, Version};

/// Decodes packets as a connection does, until one is incomplete or invalid.
pub(crate) fn decode_packets(mut bytes: BytesMut, version: Option<u8>) -> usize {
    let mut version = match version {
        Some(4) => Some(Version::V311),
        Some(5) => Some(Version::V5),
        _ => None,
    };
    let mut count = 0;
    loop {
        let before = bytes.len();
        let Ok(Some(packet)) = decode_next(&mut bytes, version, 64 << 10) else {
            return count;
        };
        assert!(bytes.len() < before, "a packet takes bytes");
        count += 1;
        match packet {
            ClientPacket::Connect(connect) => version = version.or(Some(connect.version)),
            ClientPacket::Publish(publish) => {
                let _ =
                    // QoS 2 cannot be encoded.
                    version.and_then(|version| encode(&ServerPacket::Publish(publish), version));
            }
            _ => {}
        }
    }
}
