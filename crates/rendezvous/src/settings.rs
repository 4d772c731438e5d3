//! Settings of a rendezvous.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nearpath_daemon::drain::DrainWatch;
use rustls::ServerConfig;

use super::rate_limits::RateLimit;
use super::state;
use nearpath_p2p::ticket::RendezvousKey;

/// Settings of a rendezvous; see [`crate::start_rendezvous`].
#[derive(Debug)]
pub struct RendezvousSettings {
    /// Key that signs tickets.
    pub key: RendezvousKey,
    /// Listener of control connections and relays.
    pub listener: std::net::TcpListener,
    /// TLS settings; `None`: behind a TLS proxy, or on loopback.
    pub tls: Option<Arc<ServerConfig>>,
    /// Addresses of the observers: one, or two.
    pub observers: Vec<ObserverBinding>,
    /// Limits of clients and workers.
    pub limits: RendezvousLimits,
    /// Starts the shutdown: no new connections, control connections are closed, relays continue
    /// until the drain times out.
    pub drain: DrainWatch,
}

/// Address of an observer. It uses this port and the next, over UDP and TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObserverBinding {
    /// Address to bind.
    pub bind: SocketAddr,
    /// Public address, if it differs. Unspecified: the address by which a worker reaches the
    /// rendezvous.
    pub public: Option<IpAddr>,
}

/// Limits of clients and workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RendezvousLimits {
    /// Limits of the state.
    pub state: state::StateLimits,
    /// Rate of one connection's messages, frames included. Above it the connection is read more
    /// slowly.
    pub message_rate: RateLimit,
    /// Bytes of frames queued for one connection, and for all. Frames above it are dropped.
    pub queued_frame_bytes: (usize, u64),
    /// Rate of new connections per address (IPv6: /64) without a ticket, and per worker with one.
    /// Above it they are closed at once.
    pub arrival_rate: RateLimit,
    /// Rate of binding requests per address. Above it they are dropped.
    pub observer_rate: RateLimit,
    /// Maximum of connections without a verified ticket.
    pub max_handshakes: usize,
    /// Time for a handshake, TLS included.
    pub handshake_timeout: Duration,
    /// Silence after which a connection is dead, although it is pinged every third of this.
    pub silence_timeout: Duration,
    /// Time after which a connection that accepts no message is closed.
    pub send_timeout: Duration,
    /// Maximum of relays, waiting ends included.
    pub max_relays: usize,
    /// Time for which one end of a relay waits for the other.
    pub relay_wait_timeout: Duration,
    /// Time after which a relay without traffic is closed.
    pub relay_idle_timeout: Duration,
    /// Byte rate of one relay, both directions together, and of one control connection; `None`:
    /// unlimited.
    pub relay_rate: Option<RateLimit>,
    /// Byte rate of all relays and control connections of a job; `None`: unlimited.
    pub job_rate: Option<RateLimit>,
}

impl Default for RendezvousLimits {
    fn default() -> Self {
        Self {
            state: state::StateLimits::default(),
            // Documented in `contract/rendezvous.md`, "Connections".
            message_rate: RateLimit {
                per_second: 1000,
                burst: 10_000,
            },
            // Documented in `contract/rendezvous.md`, "Relayed frames".
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

/// Returns the prefix that stands for a client: an IPv6 host has a whole /64 (RFC 4291 section
/// 2.5.4).
pub(super) fn address_prefix(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => {
            // One host can use all addresses of its /64, so they count as one client.
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
