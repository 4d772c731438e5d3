//! What a connection shows of its path: the part of `struct tcp_info` (`linux/tcp.h`) that says how much it bears.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::raw::get;

/// Octets of `struct tcp_info` up to the last field that is read here; Linux 4.19 and later have them.
const LENGTH: usize = 224;

/// How the bytes of a connection flow, from here to its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// Octets of a full segment.
    pub segment: u32,
    /// The congestion window, in segments.
    pub window: u32,
    /// Shortest round trip so far; nothing where none was measured.
    pub round_trip: Option<Duration>,
    /// Octets a second that lately arrived, as long as there was enough to send (`tcpi_delivery_rate`).
    pub rate: u64,
    /// Most octets a second that may be sent (`SO_MAX_PACING_RATE`).
    pub limit: u64,
    /// Octets that the program has sent and the kernel has given to the path.
    pub sent: u64,
    /// Segments that were sent again and not for nothing, and those that arrived with a congestion mark.
    pub lost: u32,
}

impl Flow {
    /// From what the kernel calls `struct tcp_info`; an older kernel's, which is shorter, says too little.
    pub(super) fn read(info: &[u8]) -> Option<Self> {
        let info: &[u8; LENGTH] = info.first_chunk()?;
        let word = |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let long = |at| if cfg!(target_endian = "big") { long(at).rotate_left(32) } else { long(at) };
        let shortest = Some(word(148)).filter(|&micros| micros != 0 && micros != u32::MAX);
        let resent = word(100).saturating_sub(word(216)); // less those that had arrived: the peer said so (RFC 2883)
        Some(Self {
            segment: word(16),
            window: word(80),
            round_trip: shortest.map(|micros| Duration::from_micros(micros.into())),
            rate: long(160),
            limit: long(112),
            sent: long(200).saturating_sub(long(208)),
            lost: resent.saturating_add(word(196)),
        })
    }
}

/// Asks the kernel; a third of a microsecond.
///
/// # Errors
/// When it is no TCP socket, or the kernel is older than Linux 4.19.
pub fn flow(socket: impl AsFd) -> io::Result<Flow> {
    let mut info = [0; LENGTH];
    let length = get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    Flow::read(&info[..length]).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn what_went_through_is_counted() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let mut peer = server.accept().unwrap().0;
        let before = flow(&ours).unwrap();
        assert_eq!((before.sent, before.lost), (0, 0));
        assert!(before.segment > 500 && before.window > 1, "{before:?}");
        ours.write_all(&[1; 100_000]).unwrap();
        peer.read_exact(&mut [0; 100_000]).unwrap();
        peer.write_all(b"x").unwrap(); // carries the acknowledgement
        ours.read_exact(&mut [0]).unwrap();
        let after = flow(&ours).unwrap();
        assert_eq!((after.sent, after.lost), (100_000, 0));
        assert!(after.rate > 0 && after.round_trip.is_some(), "{after:?}");
    }

    #[test]
    fn what_is_too_short_says_nothing() {
        assert_eq!(Flow::read(&[0; LENGTH - 1]), None);
        assert_eq!(Flow::read(&[0; LENGTH + 9]).unwrap().round_trip, None);
    }
}
