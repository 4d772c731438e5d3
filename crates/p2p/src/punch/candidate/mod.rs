//! Where a worker might be reached: candidates, in the words of RFC 8445 section 5.1.
//!
//! Simpler than there: one component, no foundations (pairs are paced, never frozen), and no relayed address of one's own
//! (the relay belongs to the rendezvous, and is a way of its own). A candidate that a peer sends is an order to send
//! packets somewhere; so what it may name is limited, and so is how many.

mod pair;

use std::net::{IpAddr, SocketAddr};

pub use pair::{Key, priority_of_pair};

/// The most candidates that a peer may send; what comes after is not looked at.
pub const MOST: usize = 16;

/// Ports below are never probed: no NAT gives them to a client (RFC 4787 REQ-3), but services listen there.
pub const LOWEST_PORT: u16 = 1024;

/// What carries the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// Datagrams, QUIC later.
    Udp,
    /// One stream.
    Tcp,
}

/// How the address became known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// It is an address of the machine.
    Host,
    /// An authentic probe came from there; never sent to the peer (RFC 8445: peer reflexive).
    Discovered,
    /// The rendezvous saw packets come from there.
    Reflexive,
    /// It is the relay's.
    Relayed,
}

impl Kind {
    /// The type preference of RFC 8445 section 5.1.2.2.
    fn preference(self) -> u32 {
        match self {
            Self::Host => 126,
            Self::Discovered => 110,
            Self::Reflexive => 100,
            Self::Relayed => 0,
        }
    }
}

/// An address at which a worker might be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// How it became known.
    pub kind: Kind,
    /// What carries the packets.
    pub transport: Transport,
    /// Where.
    pub addr: SocketAddr,
    /// Higher is better (RFC 8445 section 5.1.2).
    pub priority: u32,
}

/// Why a candidate of the peer's is not probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Nobody can be there: unspecified, multicast or broadcast.
    #[error("the address {0} stands for no single machine")]
    Nobody(IpAddr),
    /// Only the machine itself, or its link, can mean this address.
    #[error("the address {0} means something else on every machine")]
    Local(IpAddr),
    /// See [`LOWEST_PORT`].
    #[error("port {0} is below {LOWEST_PORT}")]
    Port(u16),
    /// The peer may not name the relay or what it has found out itself.
    #[error("a peer offers host and reflexive candidates only")]
    Kind,
}

impl Candidate {
    /// A candidate with its priority. `preference`: of this address among those of its kind, higher is better.
    pub fn new(kind: Kind, transport: Transport, addr: SocketAddr, preference: u16) -> Self {
        let addr = SocketAddr::new(addr.ip().to_canonical(), addr.port());
        Self { kind, transport, addr, priority: priority(kind, preference) }
    }

    /// Whether it may be probed when a peer sends it. `loopback`: this machine has offered its own loopback address.
    pub fn check(&self, loopback: bool) -> Result<(), Refused> {
        if !matches!(self.kind, Kind::Host | Kind::Reflexive) {
            return Err(Refused::Kind);
        }
        check_ip(self.addr.ip(), loopback)?;
        if self.addr.port() < LOWEST_PORT { Err(Refused::Port(self.addr.port())) } else { Ok(()) }
    }
}

/// RFC 8445 section 5.1.2.1, with component 1.
fn priority(kind: Kind, preference: u16) -> u32 {
    (kind.preference() << 24) | (u32::from(preference) << 8) | 255
}

fn check_ip(ip: IpAddr, loopback: bool) -> Result<(), Refused> {
    let nobody = ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::from([255, 255, 255, 255]);
    let link = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    match () {
        () if nobody => Err(Refused::Nobody(ip)),
        () if link || (ip.is_loopback() && !loopback) => Err(Refused::Local(ip)),
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(addr: &str) -> Candidate {
        Candidate::new(Kind::Host, Transport::Udp, addr.parse().unwrap(), 7)
    }

    #[test]
    fn priorities_are_those_of_the_standard() {
        assert_eq!(priority(Kind::Host, 65_535), 2_130_706_431); // the example of RFC 8839 section 5.6
        assert!(priority(Kind::Host, 0) > priority(Kind::Discovered, u16::MAX));
        assert!(priority(Kind::Discovered, 0) > priority(Kind::Reflexive, u16::MAX));
    }

    #[test]
    fn a_mapped_address_is_what_it_maps() {
        assert_eq!(host("[::ffff:192.0.2.1]:5000").addr, "192.0.2.1:5000".parse().unwrap());
    }

    #[test]
    fn a_peer_cannot_name_what_is_nobody_or_everybody() {
        for addr in ["0.0.0.0:5000", "224.0.0.1:5000", "255.255.255.255:5000", "[::]:5000", "[ff02::1]:5000"] {
            assert!(matches!(host(addr).check(true), Err(Refused::Nobody(_))), "{addr}");
        }
        for addr in ["169.254.169.254:8080", "[fe80::1]:5000", "127.0.0.1:5000", "[::1]:5000"] {
            assert!(matches!(host(addr).check(false), Err(Refused::Local(_))), "{addr}");
        }
        assert_eq!(host("127.0.0.1:5000").check(true), Ok(()));
        assert_eq!(host("192.0.2.1:53").check(false), Err(Refused::Port(53)));
        assert_eq!(host("10.0.0.1:5000").check(false), Ok(()));
        let relayed = Candidate { kind: Kind::Relayed, ..host("192.0.2.1:5000") };
        assert_eq!(relayed.check(false), Err(Refused::Kind));
    }
}
