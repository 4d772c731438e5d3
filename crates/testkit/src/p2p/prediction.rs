//! What the lab's kinds are in the machine's words, and which of them can meet.

use crate::lab::nat::{self, Family, Kind};
use nearpath_p2p::punch::Transport;
use nearpath_p2p::punch::nat::{Behaviour, Between, Filtering, Mapping, can};

pub fn behaviour(kind: Kind, family: Family) -> Option<Behaviour> {
    let (translates, mapping) = match kind.mapping(family)? {
        nat::Mapping::Unchanged => (false, Mapping::Independent),
        nat::Mapping::EndpointIndependent => (true, Mapping::Independent),
        nat::Mapping::AddressDependent => (true, Mapping::Address),
        nat::Mapping::AddressAndPortDependent => (true, Mapping::AddressAndPort),
    };
    let filtering = match kind.filtering(family)? {
        nat::Filtering::EndpointIndependent => Filtering::Independent,
        nat::Filtering::AddressDependent => Filtering::Address,
        nat::Filtering::AddressAndPortDependent => Filtering::AddressAndPort,
    };
    Some(Behaviour { translates, udp: kind.passes_udp(), ..Behaviour::nat(mapping, filtering) })
}

/// Whether two sites can meet over a transport, in any family that both have.
pub fn permits(kinds: [Kind; 2], transport: Transport) -> bool {
    [Family::V4, Family::V6].into_iter().any(|family| {
        let [a, b] = kinds.map(|kind| behaviour(kind, family));
        a.zip(b).is_some_and(|(a, b)| can(&a, &b, Between::Apart, transport))
    })
}
