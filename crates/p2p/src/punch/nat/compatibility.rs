//! What theory permits for a pair of kinds.

use crate::punch::candidate::Transport;

use super::{Behaviour, Filtering, Mapping};

/// How the two stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Between {
    /// Their addresses in one network reach each other: nothing stands between.
    Together,
    /// Behind the same outermost NAT, in different networks: packets must turn around there.
    BehindOne,
    /// The public network is between them.
    Apart,
}

/// Whether two workers can have a direct connection, each knowing where the rendezvous sees the other.
///
/// It is enough that one side's first packet reaches the other: the answer takes the way back that this packet has opened
/// (a NAT tracks the session, or no TCP connection could be accepted through it). The same holds for both transports, if
/// the NATs know simultaneous open (RFC 5382 REQ-2).
pub fn can(a: &Behaviour, b: &Behaviour, between: Between, transport: Transport) -> bool {
    if between == Between::Together {
        return true;
    }
    let through = transport == Transport::Tcp || (a.udp && b.udp);
    let turns = between == Between::Apart || (a.hairpins && b.hairpins);
    through && turns && (reaches(a, b) || reaches(b, a))
}

/// Whether a packet of `from` gets to the address of `to` that the rendezvous saw, while `to` sends to that of `from`.
///
/// What `to` sends opens that address only if it goes out by it. A NAT that maps by destination and yet lets everybody in
/// has two ways for one session when both sides begin at once; nothing is promised of it.
fn reaches(from: &Behaviour, to: &Behaviour) -> bool {
    let steady = |one: &Behaviour| one.mapping == Mapping::Independent;
    steady(to) && (to.filtering != Filtering::AddressAndPort || steady(from))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Behaviour = Behaviour::nat(Mapping::Independent, Filtering::Independent);
    const RESTRICTED: Behaviour = Behaviour::nat(Mapping::Independent, Filtering::Address);
    const PORT: Behaviour = Behaviour::nat(Mapping::Independent, Filtering::AddressAndPort);
    const SYMMETRIC: Behaviour = Behaviour::nat(Mapping::AddressAndPort, Filtering::AddressAndPort);

    fn apart(a: &Behaviour, b: &Behaviour) -> bool {
        let udp = can(a, b, Between::Apart, Transport::Udp);
        assert_eq!(udp, can(b, a, Between::Apart, Transport::Udp), "it has no direction");
        udp
    }

    #[test]
    fn it_says_what_is_known_of_the_classic_kinds() {
        let cones = [Behaviour::OPEN, Behaviour::FIREWALL, FULL, RESTRICTED, PORT];
        assert!(cones.iter().all(|a| cones.iter().all(|b| apart(a, b))));
        assert!([Behaviour::OPEN, FULL, RESTRICTED].iter().all(|other| apart(&SYMMETRIC, other)));
        assert!([PORT, Behaviour::FIREWALL, SYMMETRIC].iter().all(|other| !apart(&SYMMETRIC, other)));
    }

    #[test]
    fn udp_that_is_blocked_leaves_tcp() {
        let blocked = Behaviour { udp: false, ..PORT };
        assert!(!can(&blocked, &FULL, Between::Apart, Transport::Udp));
        assert!(can(&blocked, &FULL, Between::Apart, Transport::Tcp));
    }

    #[test]
    fn behind_one_nat_it_must_turn_packets_around() {
        let turning = Behaviour { hairpins: true, ..PORT };
        assert!(!can(&PORT, &PORT, Between::BehindOne, Transport::Udp));
        assert!(can(&turning, &turning, Between::BehindOne, Transport::Udp));
        assert!(can(&SYMMETRIC, &SYMMETRIC, Between::Together, Transport::Udp));
    }
}
