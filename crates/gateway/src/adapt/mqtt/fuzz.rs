//! Packets cut from bytes and written back, for the fuzz target.

use bytes::BytesMut;

use super::codec::{encode, next};
use super::packet::{In, Out, Version};

/// As a line reads them: until one is not there as a whole, or is none.
pub(crate) fn packets(mut bytes: BytesMut, version: Option<u8>) -> usize {
    let mut version = match version {
        Some(4) => Some(Version::V311),
        Some(5) => Some(Version::V5),
        _ => None,
    };
    let mut count = 0;
    loop {
        let before = bytes.len();
        let Ok(Some(packet)) = next(&mut bytes, version, 64 << 10) else { return count };
        assert!(bytes.len() < before, "a packet takes bytes");
        count += 1;
        match packet {
            In::Connect(connect) => version = version.or(Some(connect.version)),
            In::Publish(publish) => {
                let _ = version.and_then(|version| encode(&Out::Publish(publish), version)); // QoS 2 has no word here
            }
            _ => {}
        }
    }
}
