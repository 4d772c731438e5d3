//! Path measurements of a connection: the relevant part of `struct tcp_info` (`linux/tcp.h`).

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::raw_options::get_option;

/// Length of `struct tcp_info` up to the last field read here. Linux 4.19 and later have it.
const TCP_INFO_LEN: usize = 224;

/// Measurements of a connection's sending direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpFlowInfo {
    /// Maximum segment size in octets.
    pub mss_bytes: u32,
    /// Congestion window in segments.
    pub cwnd_segments: u32,
    /// Minimum round trip time; `None` before the first measurement.
    pub min_rtt: Option<Duration>,
    /// Recent delivery rate in octets per second, while there was enough to send
    /// (`tcpi_delivery_rate`).
    pub delivery_rate: u64,
    /// Maximum pacing rate in octets per second (`SO_MAX_PACING_RATE`).
    pub max_pacing_rate: u64,
    /// Octets that the program wrote and the kernel has sent.
    pub bytes_sent: u64,
    /// Segments that were lost, or arrived with a congestion mark. Spurious retransmissions do not
    /// count.
    pub lost_segments: u32,
}

impl TcpFlowInfo {
    /// Parses `struct tcp_info`. Older kernels have a shorter one without the needed fields.
    pub(super) fn parse_info(info: &[u8]) -> Option<Self> {
        let info: &[u8; TCP_INFO_LEN] = info.first_chunk()?;
        let word =
            |at: usize| u32::from_ne_bytes([info[at], info[at + 1], info[at + 2], info[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        // The two halves of a 64-bit field are swapped on big-endian machines.
        let long = |at| {
            if cfg!(target_endian = "big") {
                long(at).rotate_left(32)
            } else {
                long(at)
            }
        };
        // The kernel's start value is all ones: no round trip was measured yet.
        let min_rtt_micros = Some(word(148)).filter(|&micros| micros != 0 && micros != u32::MAX);
        // minus duplicates, which the peer reported (RFC 2883)
        let retransmitted = word(100).saturating_sub(word(216));
        Some(Self {
            mss_bytes: word(16),
            cwnd_segments: word(80),
            min_rtt: min_rtt_micros.map(|micros| Duration::from_micros(micros.into())),
            delivery_rate: long(160),
            max_pacing_rate: long(112),
            bytes_sent: long(200).saturating_sub(long(208)),
            lost_segments: retransmitted.saturating_add(word(196)),
        })
    }
}

/// Reads the measurements from the kernel, which takes a third of a microsecond.
///
/// # Errors
/// Fails when it is not a TCP socket, or before Linux 4.19.
pub fn tcp_flow_info(socket: impl AsFd) -> io::Result<TcpFlowInfo> {
    let mut info = [0; TCP_INFO_LEN];
    let length = get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut info)?;
    TcpFlowInfo::parse_info(&info[..length]).ok_or_else(|| io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn sent_bytes_are_counted() {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
        let mut peer = server.accept().unwrap().0;
        let before = tcp_flow_info(&client).unwrap();
        assert_eq!((before.bytes_sent, before.lost_segments), (0, 0));
        assert!(
            before.mss_bytes > 500 && before.cwnd_segments > 1,
            "{before:?}"
        );
        client.write_all(&[1; 100_000]).unwrap();
        peer.read_exact(&mut [0; 100_000]).unwrap();
        peer.write_all(b"x").unwrap(); // this segment carries the acknowledgement
        client.read_exact(&mut [0]).unwrap();
        let after = tcp_flow_info(&client).unwrap();
        assert_eq!((after.bytes_sent, after.lost_segments), (100_000, 0));
        assert!(
            after.delivery_rate > 0 && after.min_rtt.is_some(),
            "{after:?}"
        );
    }

    #[test]
    fn a_truncated_struct_is_rejected() {
        assert_eq!(TcpFlowInfo::parse_info(&[0; TCP_INFO_LEN - 1]), None);
        assert_eq!(
            TcpFlowInfo::parse_info(&[0; TCP_INFO_LEN + 9])
                .unwrap()
                .min_rtt,
            None
        );
    }
}
