//! What a rendezvous is started with.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nearpath_daemon::drain::DrainWatch;
use rustls::ServerConfig;

use super::rate_limits::RateLimit;
use super::state;
use nearpath_p2p::ticket::RendezvousKey;

/// See the module.
#[derive(Debug)]
pub struct RendezvousSettings {
    /// Tickets are minted with it.
    pub key: RendezvousKey,
    /// Takes lines and relays.
    pub listener: std::net::TcpListener,
    /// For TLS; without it, a proxy in front has it, or the machine is alone.
    pub tls: Option<Arc<ServerConfig>>,
    /// Where workers ask how they are seen: one address, or two.
    pub observers: Vec<ObserverBinding>,
    /// What strangers and workers may make it hold and do.
    pub limits: RendezvousLimits,
    /// Begins the end: no new connection, lines are told, relays go on until whoever holds the trigger loses patience.
    pub drain: DrainWatch,
}

/// Where an observer is. It takes this port and the next, over UDP and TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObserverBinding {
    /// To bind to.
    pub bind: SocketAddr,
    /// What workers reach it by, if that is another address. Unspecified: by the one by which they reach the line.
    pub public: Option<IpAddr>,
}

/// What strangers and workers may make the rendezvous hold and do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RendezvousLimits {
    /// Those of the desk.
    pub state: state::StateLimits,
    /// Messages of one line, parcels included. Above it is read more slowly.
    pub message_rate: RateLimit,
    /// Bytes of parcels that may lie in one line's letter box, and in all of them. What finds no room is dropped.
    pub queued_frame_bytes: (usize, u64),
    /// New connections from one address (IPv6: one /64) without a ticket, and those of one worker with one. Above they are
    /// closed at once.
    pub arrival_rate: RateLimit,
    /// Questions to observers from one address. Above they are dropped.
    pub observer_rate: RateLimit,
    /// Connections that have not shown a ticket yet.
    pub max_handshakes: usize,
    /// How long they may take, TLS included.
    pub handshake_timeout: Duration,
    /// A line that is silent, though it is asked every third of this, is gone.
    pub silence_timeout: Duration,
    /// A line that does not take a message for so long is closed.
    pub send_timeout: Duration,
    /// Relays, those that wait for their other end included.
    pub max_relays: usize,
    /// How long one end of a relay waits for the other.
    pub relay_wait_timeout: Duration,
    /// A relay over which nothing went for so long is closed.
    pub relay_idle_timeout: Duration,
    /// Bytes over one relay, both directions together, and of one line; none: no limit.
    pub relay_rate: Option<RateLimit>,
    /// Bytes over all relays and lines of a job; none: no limit.
    pub job_rate: Option<RateLimit>,
}

impl Default for RendezvousLimits {
    fn default() -> Self {
        Self {
            state: state::StateLimits::default(),
            message_rate: RateLimit {
                per_second: 1000,
                burst: 10_000,
            },
            queued_frame_bytes: (16 << 20, 512 << 20),
            arrival_rate: RateLimit {
                per_second: 200,
                burst: 2000,
            },
            observer_rate: RateLimit {
                per_second: 500,
                burst: 5000,
            },
            max_handshakes: 2000,
            handshake_timeout: Duration::from_secs(10),
            silence_timeout: Duration::from_secs(60),
            send_timeout: Duration::from_secs(10),
            max_relays: 10_000,
            relay_wait_timeout: Duration::from_secs(60),
            relay_idle_timeout: Duration::from_secs(600),
            relay_rate: None,
            job_rate: None,
        }
    }
}

/// Whom an address stands for: an IPv6 host has a whole /64 (RFC 4291 section 2.5.4).
pub(super) fn address_prefix(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => {
            let [a, b, c, d, ..] = ip.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_address_stands_for_its_64_bit_prefix() {
        let of = |text: &str| address_prefix(text.parse().unwrap()).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(
            (of("192.0.2.7"), of("::ffff:192.0.2.7")),
            ("192.0.2.7".into(), "192.0.2.7".into())
        );
    }
}
