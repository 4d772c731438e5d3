//! Events of denied connections, at most one per caller and second.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use aya::Ebpf;
use aya::maps::{MapData, RingBuf};

use super::{AddressEdge, rows};
use crate::bpf::object::take_map;

/// Length of `struct denial_event`.
const DENIAL_EVENT_BYTES: usize = 16;
/// `IPPROTO_UDP`.
const UDP: u16 = 17;

/// A denied connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenialEvent {
    /// The functions. A callee of 0.0.0.0 is none that runs here.
    pub edge: AddressEdge,
    /// Destination that the caller asked for.
    pub destination: SocketAddr,
    /// Datagrams, not TCP.
    pub is_udp: bool,
}

/// Denied connections since the switch was attached. Its descriptor is readable when there are new ones.
pub struct DenialEvents(RingBuf<MapData>);

impl DenialEvents {
    pub(super) fn take_from(loaded: &mut Ebpf) -> io::Result<Self> {
        take_map(loaded, "denial_events").map(Self)
    }

    /// Returns the next event; `None` if there is none. Never waits.
    pub fn next_event(&mut self) -> Option<DenialEvent> {
        self.0.next().and_then(|item| decode_event(&item))
    }
}

impl AsFd for DenialEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn decode_event(bytes: &[u8]) -> Option<DenialEvent> {
    let bytes: &[u8; DENIAL_EVENT_BYTES] = bytes.try_into().ok()?;
    let (words, _) = bytes.as_chunks::<4>();
    let word = |index: usize| u32::from_ne_bytes(words[index]);
    let port = u16::from_be_bytes([bytes[12], bytes[13]]);
    Some(DenialEvent {
        edge: rows::edge([word(0), word(1)]),
        destination: SocketAddr::new(rows::decode_address(word(2)).into(), port),
        is_udp: u16::from_ne_bytes([bytes[14], bytes[15]]) == UDP,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_decoded() {
        let mut bytes = [10, 60, 0, 2, 10, 60, 0, 3, 10, 62, 0, 9, 0x1f, 0x90, 0, 0];
        bytes[14..].copy_from_slice(&UDP.to_ne_bytes());
        let event = decode_event(&bytes).unwrap();
        assert_eq!(event.edge.caller.to_string(), "10.60.0.2");
        assert_eq!(event.edge.callee.to_string(), "10.60.0.3");
        assert_eq!(event.destination.to_string(), "10.62.0.9:8080");
        assert!(event.is_udp);
        assert_eq!(decode_event(&bytes[1..]), None);
    }
}
