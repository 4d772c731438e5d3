//! Candidates: addresses at which a worker may be reachable, in the terms of RFC 8445 section 5.1.
//!
//! Simpler than there: one component, no foundations (pairs are paced, never frozen), and no
//! relayed address of a worker's own (the relay belongs to the rendezvous). A peer's candidate
//! makes this side send packets to an address; so the addresses are limited, and so is their
//! number.

mod pair;

use std::net::{IpAddr, SocketAddr};

pub use pair::{PairKey, pair_priority};

/// Maximum of candidates of a peer; later ones are ignored.
pub const MAX_CANDIDATES: usize = 16;

/// Lowest port that is probed: no NAT gives a lower one to a client (RFC 4787 REQ-3), but services
/// listen there.
pub const MIN_CANDIDATE_PORT: u16 = 1024;

/// Transport of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Transport {
    /// Datagrams, later QUIC.
    Udp,
    /// A TCP stream.
    Tcp,
}

/// Origin of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum CandidateKind {
    /// Address of an interface.
    Host,
    /// Source of an authenticated probe; never sent to the peer (RFC 8445: peer reflexive).
    Discovered,
    /// Source address that the rendezvous saw (RFC 8445: server reflexive).
    Reflexive,
    /// Address of the relay.
    Relayed,
}

impl CandidateKind {
    /// Returns the type preference of RFC 8445 section 5.1.2.2.
    fn type_preference(self) -> u32 {
        match self {
            Self::Host => 126,
            Self::Discovered => 110,
            Self::Reflexive => 100,
            Self::Relayed => 0,
        }
    }
}

/// Address at which a worker may be reachable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// Origin of the address.
    pub kind: CandidateKind,
    /// Transport of the address.
    pub transport: Transport,
    /// Address and port.
    pub addr: SocketAddr,
    /// Priority; higher is better (RFC 8445 section 5.1.2).
    pub priority: u32,
}

/// Reason why a peer's candidate is not probed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CandidateError {
    /// Unspecified, multicast or broadcast address.
    #[error("the address {0} is unspecified, multicast or broadcast")]
    NotUnicast(IpAddr),
    /// Address that only the machine itself or its link can use.
    #[error("the address {0} is valid on one machine or link only")]
    NotRoutable(IpAddr),
    /// Port below [`MIN_CANDIDATE_PORT`].
    #[error("port {0} is below {MIN_CANDIDATE_PORT}")]
    Port(u16),
    /// Kind that a peer may not offer: the relay, or a discovered address.
    #[error("a peer offers host and reflexive candidates only")]
    Kind,
}

impl Candidate {
    /// Creates a candidate with its priority. `preference`: among addresses of its kind, higher is
    /// better.
    pub fn new(
        kind: CandidateKind,
        transport: Transport,
        addr: SocketAddr,
        preference: u16,
    ) -> Self {
        // IPv4-mapped addresses would never match the sources that IPv4 sockets report.
        let addr = SocketAddr::new(addr.ip().to_canonical(), addr.port());
        Self {
            kind,
            transport,
            addr,
            priority: candidate_priority(kind, preference),
        }
    }

    /// Checks whether a peer's candidate may be probed. `loopback`: this machine has offered its
    /// own loopback address.
    pub fn check_usable(&self, loopback: bool) -> Result<(), CandidateError> {
        if !matches!(self.kind, CandidateKind::Host | CandidateKind::Reflexive) {
            return Err(CandidateError::Kind);
        }
        check_ip(self.addr.ip(), loopback)?;
        if self.addr.port() < MIN_CANDIDATE_PORT {
            Err(CandidateError::Port(self.addr.port()))
        } else {
            Ok(())
        }
    }
}

/// Returns the priority of RFC 8445 section 5.1.2.1, with component 1.
fn candidate_priority(kind: CandidateKind, preference: u16) -> u32 {
    (kind.type_preference() << 24) | (u32::from(preference) << 8) | 255
}

fn check_ip(ip: IpAddr, loopback: bool) -> Result<(), CandidateError> {
    let is_not_unicast =
        ip.is_unspecified() || ip.is_multicast() || ip == IpAddr::from([255, 255, 255, 255]);
    let is_link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        // A mapped address would bypass the checks of its IPv4 address.
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
