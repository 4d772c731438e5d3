//! NAT behaviour of the lab's kinds, and the pairs that can connect directly.

use crate::lab::nat::{self, IpFamily, NatKind};
use nearpath_p2p::punch::Transport;
use nearpath_p2p::punch::nat::{
    FilteringBehaviour, MappingBehaviour, NatBehaviour, NatRelation, can_connect,
};

pub fn nat_behaviour(kind: NatKind, family: IpFamily) -> Option<NatBehaviour> {
    let (translates, mapping) = match kind.mapping_of(family)? {
        nat::LabMapping::Unchanged => (false, MappingBehaviour::EndpointIndependent),
        nat::LabMapping::EndpointIndependent => (true, MappingBehaviour::EndpointIndependent),
        nat::LabMapping::AddressDependent => (true, MappingBehaviour::AddressDependent),
        nat::LabMapping::AddressAndPortDependent => {
            (true, MappingBehaviour::AddressAndPortDependent)
        }
    };
    let filtering = match kind.filtering_of(family)? {
        nat::LabFiltering::EndpointIndependent => FilteringBehaviour::EndpointIndependent,
        nat::LabFiltering::AddressDependent => FilteringBehaviour::AddressDependent,
        nat::LabFiltering::AddressAndPortDependent => FilteringBehaviour::AddressAndPortDependent,
    };
    Some(NatBehaviour {
        translates,
        udp: kind.passes_udp(),
        ..NatBehaviour::nat(mapping, filtering)
    })
}

/// Returns true if two sites can connect over a transport, in any family that both have.
pub fn permits_direct(kinds: [NatKind; 2], transport: Transport) -> bool {
    [IpFamily::V4, IpFamily::V6].into_iter().any(|family| {
        let [a, b] = kinds.map(|kind| nat_behaviour(kind, family));
        a.zip(b)
            .is_some_and(|(a, b)| can_connect(&a, &b, NatRelation::Apart, transport))
    })
}
