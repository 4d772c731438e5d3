//! What a rendezvous is started with.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use nearpath_daemon::drain::Watch;
use rustls::ServerConfig;

use super::rate_limits::Rate;
use super::state;
use nearpath_p2p::ticket::Key;

/// See the module.
#[derive(Debug)]
pub struct Settings {
    /// Tickets are minted with it.
    pub key: Key,
    /// Takes lines and relays.
    pub listener: std::net::TcpListener,
    /// For TLS; without it, a proxy in front has it, or the machine is alone.
    pub tls: Option<Arc<ServerConfig>>,
    /// Where workers ask how they are seen: one address, or two.
    pub observers: Vec<Place>,
    /// What strangers and workers may make it hold and do.
    pub limits: Limits,
    /// Begins the end: no new connection, lines are told, relays go on until whoever holds the trigger loses patience.
    pub drain: Watch,
}

/// Where an observer is. It takes this port and the next, over UDP and TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// To bind to.
    pub bind: SocketAddr,
    /// What workers reach it by, if that is another address. Unspecified: by the one by which they reach the line.
    pub public: Option<IpAddr>,
}

/// What strangers and workers may make the rendezvous hold and do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Those of the desk.
    pub desk: state::Limits,
    /// Messages of one line, parcels included. Above it is read more slowly.
    pub said: Rate,
    /// Bytes of parcels that may lie in one line's letter box, and in all of them. What finds no room is dropped.
    pub lying: (usize, u64),
    /// New connections from one address (IPv6: one /64) without a ticket, and those of one worker with one. Above they are
    /// closed at once.
    pub arrivals: Rate,
    /// Questions to observers from one address. Above they are dropped.
    pub questions: Rate,
    /// Connections that have not shown a ticket yet.
    pub unproven: usize,
    /// How long they may take, TLS included.
    pub handshake: Duration,
    /// A line that is silent, though it is asked every third of this, is gone.
    pub silence: Duration,
    /// A line that does not take a message for so long is closed.
    pub slow: Duration,
    /// Relays, those that wait for their other end included.
    pub relays: usize,
    /// How long one end of a relay waits for the other.
    pub relay_wait: Duration,
    /// A relay over which nothing went for so long is closed.
    pub relay_idle: Duration,
    /// Bytes over one relay, both directions together, and of one line; none: no limit.
    pub relay_rate: Option<Rate>,
    /// Bytes over all relays and lines of a job; none: no limit.
    pub job_rate: Option<Rate>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            desk: state::Limits::default(),
            said: Rate { per_second: 1000, burst: 10_000 },
            lying: (16 << 20, 512 << 20),
            arrivals: Rate { per_second: 200, burst: 2000 },
            questions: Rate { per_second: 500, burst: 5000 },
            unproven: 2000,
            handshake: Duration::from_secs(10),
            silence: Duration::from_secs(60),
            slow: Duration::from_secs(10),
            relays: 10_000,
            relay_wait: Duration::from_secs(60),
            relay_idle: Duration::from_secs(600),
            relay_rate: None,
            job_rate: None,
        }
    }
}

/// Whom an address stands for: an IPv6 host has a whole /64 (RFC 4291 section 2.5.4).
pub(super) fn household(ip: IpAddr) -> IpAddr {
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
    fn a_household_is_a_prefix() {
        let of = |text: &str| household(text.parse().unwrap()).to_string();
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!((of("192.0.2.7"), of("::ffff:192.0.2.7")), ("192.0.2.7".into(), "192.0.2.7".into()));
    }
}
