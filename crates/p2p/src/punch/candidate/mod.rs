//! Where a worker might be reached: candidates, in the words of RFC 8445 section 5.1.
//!
//! Simpler than there: one component, no foundations (pairs are paced, never frozen), and no relayed address of one's own
//! (the relay belongs to the rendezvous, and is a way of its own). A candidate that a peer sends is an order to send
//! packets somewhere; so what it may name is limited, and so is how many.

mod pair;

use std::net::{IpAddr, SocketAddr};

pub use pair::{PairKey, pair_priority};

/// The most candidates that a peer may send; what comes after is not looked at.
pub const MAX_CANDIDATES: usize = 16;

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
pub enum CandidateKind {
    /// It is an address of the machine.
    Host,
    /// An authentic probe came from there; never sent to the peer (RFC 8445: peer reflexive).
    Discovered,
    /// The rendezvous saw packets come from there.
    Reflexive,
    /// It is the relay's.
    Relayed,
}

impl CandidateKind {
    /// The type preference of RFC 8445 section 5.1.2.2.
    fn type_preference(self) -> u32 {
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
    pub kind: CandidateKind,
    /// What carries the packets.
    pub transport: Transport,
    /// Where.
    pub addr: SocketAddr,
    /// Higher is better (RFC 8445 section 5.1.2).
    pub priority: u32,
}

/// Why a candidate of the peer's is not probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CandidateError {
    /// Nobody can be there: unspecified, multicast or broadcast.
    #[error("the address {0} stands for no single machine")]
    NotUnicast(IpAddr),
    /// Only the machine itself, or its link, can mean this address.
    #[error("the address {0} means something else on every machine")]
    NotRoutable(IpAddr),
    /// See [`LOWEST_PORT`].
    #[error("port {0} is below {LOWEST_PORT}")]
    Port(u16),
    /// The peer may not name the relay or what it has found out itself.
    #[error("a peer offers host and reflexive candidates only")]
    Kind,
}

impl Candidate {
    /// A candidate with its priority. `preference`: of this address among those of its kind, higher is better.
    pub fn new(
        kind: CandidateKind,
        transport: Transport,
        addr: SocketAddr,
        preference: u16,
    ) -> Self {
        let addr = SocketAddr::new(addr.ip().to_canonical(), addr.port());
        Self {
            kind,
            transport,
            addr,
            priority: candidate_priority(kind, preference),
        }
    }

    /// Whether it may be probed when a peer sends it. `loopback`: this machine has offered its own loopback address.
    pub fn check_usable(&self, loopback: bool) -> Result<(), CandidateError> {
        if !matches!(self.kind, CandidateKind::Host | CandidateKind::Reflexive) {
            return Err(CandidateError::Kind);
        }
        check_ip(self.addr.ip(), loopback)?;
        if self.addr.port() < LOWEST_PORT {
            Err(CandidateError::Port(self.addr.port()))
        } else {
            Ok(())
        }
    }
}

/// RFC 8445 section 5.1.2.1, with component 1.
fn candidate_priority(kind: CandidateKind, preference: u16) -> u32 {
    (kind.type_preference() << 24) | (u32::from(preference) << 8) | 255
}

fn check_ip(ip: IpAddr, loopback: bool) -> Result<(), CandidateError> {
    let is_not_unicast =
        ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::from([255, 255, 255, 255]);
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local() || ip.to_ipv4_mapped().is_some(),
    };
    match () {
        () if is_not_unicast => Err(CandidateError::NotUnicast(ip)),
        () if is_link_local || (ip.is_loopback() && !loopback) => {
            Err(CandidateError::NotRoutable(ip))
        }
        () => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host_candidate(addr: &str) -> Candidate {
        Candidate::new(
            CandidateKind::Host,
            Transport::Udp,
            addr.parse().unwrap(),
            7,
        )
    }

    #[test]
    fn priorities_are_those_of_the_standard() {
        assert_eq!(
            candidate_priority(CandidateKind::Host, 65_535),
            2_130_706_431
        ); // the example of RFC 8839 section 5.6
        assert!(
            candidate_priority(CandidateKind::Host, 0)
                > candidate_priority(CandidateKind::Discovered, u16::MAX)
        );
        assert!(
            candidate_priority(CandidateKind::Discovered, 0)
                > candidate_priority(CandidateKind::Reflexive, u16::MAX)
        );
    }

    #[test]
    fn an_ipv4_mapped_address_becomes_ipv4() {
        assert_eq!(
            host_candidate("[::ffff:192.0.2.1]:5000").addr,
            "192.0.2.1:5000".parse().unwrap()
        );
    }

    #[test]
    fn a_peer_cannot_offer_special_addresses() {
        for addr in [
            "0.0.0.0:5000",
            "224.0.0.1:5000",
            "255.255.255.255:5000",
            "[::]:5000",
            "[ff02::1]:5000",
        ] {
            assert!(
                matches!(
                    host_candidate(addr).check_usable(true),
                    Err(CandidateError::NotUnicast(_))
                ),
                "{addr}"
            );
        }
        for addr in [
            "169.254.169.254:8080",
            "[fe80::1]:5000",
            "127.0.0.1:5000",
            "[::1]:5000",
        ] {
            assert!(
                matches!(
                    host_candidate(addr).check_usable(false),
                    Err(CandidateError::NotRoutable(_))
                ),
                "{addr}"
            );
        }
        assert_eq!(host_candidate("127.0.0.1:5000").check_usable(true), Ok(()));
        assert_eq!(
            host_candidate("192.0.2.1:53").check_usable(false),
            Err(CandidateError::Port(53))
        );
        assert_eq!(host_candidate("10.0.0.1:5000").check_usable(false), Ok(()));
        let relayed = Candidate {
            kind: CandidateKind::Relayed,
            ..host_candidate("192.0.2.1:5000")
        };
        assert_eq!(relayed.check_usable(false), Err(CandidateError::Kind));
    }
}
