//! Pairs: a local socket and an address of the peer.

use std::net::SocketAddr;

use super::Transport;

/// Key of a pair.
///
/// Its local half is the socket's bound address (RFC 8445: base), so two candidates of one socket
/// never make two pairs (section 6.1.2.4). For TCP it is the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PairKey {
    /// Transport of the pair.
    pub transport: Transport,
    /// Bound address of the socket; may be a wildcard.
    pub base: SocketAddr,
    /// Address of the peer, as seen from here.
    pub remote: SocketAddr,
}

impl PairKey {
    /// Returns whether packets can be routed between the two.
    pub fn is_routable(&self) -> bool {
        let (base, remote) = (self.base.ip(), self.remote.ip());
        let reaches = base.is_unspecified() || base.is_loopback() == remote.is_loopback();
        base.is_ipv4() == remote.is_ipv4() && reaches
    }
}

/// Returns the priority of a pair, equal on both sides (RFC 8445 section 6.1.2.3). `leader`,
/// `follower`: priorities of the candidates.
pub fn pair_priority(leader: u32, follower: u32) -> u64 {
    let (low, high) = (
        u64::from(leader.min(follower)),
        u64::from(leader.max(follower)),
    );
    (low << 32) + 2 * high + u64::from(leader > follower)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn families_do_not_mix() {
        let key = |base: &str, remote: &str| PairKey {
            transport: Transport::Udp,
            base: base.parse().unwrap(),
            remote: remote.parse().unwrap(),
        };
        assert!(key("0.0.0.0:1", "192.0.2.1:2").is_routable());
        assert!(!key("0.0.0.0:1", "[2001:db8::1]:2").is_routable());
        assert!(!key("127.0.0.1:1", "192.0.2.1:2").is_routable());
        assert!(!key("10.0.0.1:1", "127.0.0.1:2").is_routable());
    }

    proptest! {
        #[test]
        fn the_worse_half_decides(a: u32, b: u32, c: u32) {
            prop_assume!(a.min(b) > c);
            prop_assert!(pair_priority(a, b) > pair_priority(a, c));
        }
    }
}
