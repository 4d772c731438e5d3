//! What theory permits for a pair of kinds.

use crate::punch::candidate::Transport;

use super::{Behaviour, FilteringBehaviour, MappingBehaviour};

/// How the two stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NatRelation {
    /// Their addresses in one network reach each other: nothing stands between.
    SameNetwork,
    /// Behind the same outermost NAT, in different networks: packets must turn around there.
    SameNat,
    /// The public network is between them.
    Apart,
}

/// Whether two workers can have a direct connection, each knowing where the rendezvous sees the other.
///
/// It is enough that one side's first packet reaches the other: the answer takes the way back that this packet has opened
/// (a NAT tracks the session, or no TCP connection could be accepted through it). The same holds for both transports, if
/// the NATs know simultaneous open (RFC 5382 REQ-2).
pub fn can_connect(
    a: &Behaviour,
    b: &Behaviour,
    between: NatRelation,
    transport: Transport,
) -> bool {
    if between == NatRelation::SameNetwork {
        return true;
    }
    let is_carried = transport == Transport::Tcp || (a.udp && b.udp);
    let can_turn = between == NatRelation::Apart || (a.hairpins && b.hairpins);
    is_carried && can_turn && (packet_reaches(a, b) || packet_reaches(b, a))
}

/// Whether a packet of `from` gets to the address of `to` that the rendezvous saw, while `to` sends to that of `from`.
///
/// What `to` sends opens that address only if it goes out by it. A NAT that maps by destination and yet lets everybody in
/// has two ways for one session when both sides begin at once; nothing is promised of it.
fn packet_reaches(from: &Behaviour, to: &Behaviour) -> bool {
    let is_independent = |one: &Behaviour| one.mapping == MappingBehaviour::EndpointIndependent;
    is_independent(to)
        && (to.filtering != FilteringBehaviour::AddressAndPortDependent || is_independent(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Behaviour = Behaviour::nat(
        MappingBehaviour::EndpointIndependent,
        FilteringBehaviour::EndpointIndependent,
    );
    const RESTRICTED: Behaviour = Behaviour::nat(
        MappingBehaviour::EndpointIndependent,
        FilteringBehaviour::AddressDependent,
    );
    const PORT: Behaviour = Behaviour::nat(
        MappingBehaviour::EndpointIndependent,
        FilteringBehaviour::AddressAndPortDependent,
    );
    const SYMMETRIC: Behaviour = Behaviour::nat(
        MappingBehaviour::AddressAndPortDependent,
        FilteringBehaviour::AddressAndPortDependent,
    );

    fn can_connect_apart(a: &Behaviour, b: &Behaviour) -> bool {
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
        let cones = [Behaviour::OPEN, Behaviour::FIREWALL, FULL, RESTRICTED, PORT];
        assert!(
            cones
                .iter()
                .all(|a| cones.iter().all(|b| can_connect_apart(a, b)))
        );
        assert!(
            [Behaviour::OPEN, FULL, RESTRICTED]
                .iter()
                .all(|other| can_connect_apart(&SYMMETRIC, other))
        );
        assert!(
            [PORT, Behaviour::FIREWALL, SYMMETRIC]
                .iter()
                .all(|other| !can_connect_apart(&SYMMETRIC, other))
        );
    }

    #[test]
    fn blocked_udp_leaves_tcp() {
        let blocked = Behaviour { udp: false, ..PORT };
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
        let hairpinning = Behaviour {
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
