//! Theory: which kinds of NAT can connect directly.

use crate::punch::candidate::Transport;

use super::{FilteringBehaviour, MappingBehaviour, NatBehaviour};

/// Relation of two workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NatRelation {
    /// Addresses in one network reach each other: nothing is between them.
    SameNetwork,
    /// Same outermost NAT, different networks: packets must hairpin there.
    SameNat,
    /// The public network is between them.
    Apart,
}

/// Returns whether two workers can have a direct connection, each knowing the other's mapped
/// address.
///
/// A single packet that arrives suffices: the answer takes the path that it opened. The same holds
/// for both transports, if the NATs support simultaneous open (RFC 5382 REQ-2).
pub fn can_connect(
    a: &NatBehaviour,
    b: &NatBehaviour,
    between: NatRelation,
    transport: Transport,
) -> bool {
    if between == NatRelation::SameNetwork {
        return true;
    }
    // TCP passes where UDP is blocked: company networks often allow only TCP.
    let is_carried = transport == Transport::Tcp || (a.udp && b.udp);
    let can_turn = between == NatRelation::Apart || (a.hairpins && b.hairpins);
    is_carried && can_turn && (packet_reaches(a, b) || packet_reaches(b, a))
}

/// Returns whether a packet of `from` reaches the mapped address of `to`, while `to` sends to that
/// of `from`.
///
/// Packets of `to` open that address only if they leave by it. A NAT that maps by destination and
/// filters nothing has two mappings for one session when both sides begin at once; nothing is
/// promised of it.
fn packet_reaches(from: &NatBehaviour, to: &NatBehaviour) -> bool {
    let is_independent = |one: &NatBehaviour| one.mapping == MappingBehaviour::EndpointIndependent;
    // A filter by port sees the sender's mapping, which must then be the known one.
    is_independent(to)
        && (to.filtering != FilteringBehaviour::AddressAndPortDependent || is_independent(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: NatBehaviour = NatBehaviour::nat(
        MappingBehaviour::EndpointIndependent,
        FilteringBehaviour::EndpointIndependent,
    );
    const RESTRICTED: NatBehaviour = NatBehaviour::nat(
        MappingBehaviour::EndpointIndependent,
        FilteringBehaviour::AddressDependent,
    );
    const PORT: NatBehaviour = NatBehaviour::nat(
        MappingBehaviour::EndpointIndependent,
        FilteringBehaviour::AddressAndPortDependent,
    );
    const SYMMETRIC: NatBehaviour = NatBehaviour::nat(
        MappingBehaviour::AddressAndPortDependent,
        FilteringBehaviour::AddressAndPortDependent,
    );

    fn can_connect_apart(a: &NatBehaviour, b: &NatBehaviour) -> bool {
        let udp = can_connect(a, b, NatRelation::Apart, Transport::Udp);
        assert_eq!(
            udp,
            can_connect(b, a, NatRelation::Apart, Transport::Udp),
            "it has no direction"
        );
        udp
    }

    #[test]
    fn classic_nat_kinds_connect_as_documented() {
        let cones = [
            NatBehaviour::OPEN,
            NatBehaviour::FIREWALL,
            FULL,
            RESTRICTED,
            PORT,
        ];
        assert!(
            cones
                .iter()
                .all(|a| cones.iter().all(|b| can_connect_apart(a, b)))
        );
        assert!(
            [NatBehaviour::OPEN, FULL, RESTRICTED]
                .iter()
                .all(|other| can_connect_apart(&SYMMETRIC, other))
        );
        assert!(
            [PORT, NatBehaviour::FIREWALL, SYMMETRIC]
                .iter()
                .all(|other| !can_connect_apart(&SYMMETRIC, other))
        );
    }

    #[test]
    fn blocked_udp_leaves_tcp() {
        let blocked = NatBehaviour { udp: false, ..PORT };
        assert!(!can_connect(
            &blocked,
            &FULL,
            NatRelation::Apart,
            Transport::Udp
        ));
        assert!(can_connect(
            &blocked,
            &FULL,
            NatRelation::Apart,
            Transport::Tcp
        ));
    }

    #[test]
    fn two_workers_behind_one_nat_need_hairpinning() {
        let hairpinning = NatBehaviour {
            hairpins: true,
            ..PORT
        };
        assert!(!can_connect(
            &PORT,
            &PORT,
            NatRelation::SameNat,
            Transport::Udp
        ));
        assert!(can_connect(
            &hairpinning,
            &hairpinning,
            NatRelation::SameNat,
            Transport::Udp
        ));
        assert!(can_connect(
            &SYMMETRIC,
            &SYMMETRIC,
            NatRelation::SameNetwork,
            Transport::Udp
        ));
    }
}
