//! Kinds of NAT, in the terms of RFC 4787 (UDP) and RFC 5382 (TCP): detection and compatibility.
//!
//! [`NatDetector`] turns observations into a [`NatReport`]. [`can_connect`] predicts whether two
//! kinds can connect without a relay. Neither restricts the agent, which always tries, because a
//! detected kind is a guess (decision 34). Both explain outcomes to users, and define for tests
//! which pairs must succeed.

mod compatibility;
mod detect;

pub use compatibility::{NatRelation, can_connect};
pub use detect::{NatDetector, NatObservation, NatReport, ObserverSocket};

/// Dependence of the mapped address on the destination (RFC 4787 section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MappingBehaviour {
    /// The mapped address depends on the socket alone.
    EndpointIndependent,
    /// The mapped address also depends on the destination address.
    AddressDependent,
    /// The mapped address also depends on the destination address and port ("symmetric").
    AddressAndPortDependent,
}

/// Sources whose packets pass (RFC 4787 section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FilteringBehaviour {
    /// Packets from every source pass ("full cone").
    EndpointIndependent,
    /// Packets pass from addresses to which the socket has sent ("restricted").
    AddressDependent,
    /// Packets pass from addresses and ports to which the socket has sent ("port-restricted").
    AddressAndPortDependent,
}

/// Combined behaviour of all NATs and firewalls between a worker and the public network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NatBehaviour {
    /// True if the mapped address differs from the machine's own. Otherwise there is a firewall at
    /// most.
    pub translates: bool,
    /// See [`MappingBehaviour`].
    pub mapping: MappingBehaviour,
    /// See [`FilteringBehaviour`].
    pub filtering: FilteringBehaviour,
    /// True if hosts behind the same NAT reach each other by their mapped addresses (RFC 4787
    /// section 6).
    pub hairpins: bool,
    /// True if the mapped port is the socket's own, if free. Irrelevant for punching: an observer
    /// reports the mapped port.
    pub preserves_ports: bool,
    /// True if UDP passes.
    pub udp: bool,
}

impl NatBehaviour {
    /// No NAT and no firewall.
    pub const OPEN: Self = Self {
        translates: false,
        mapping: MappingBehaviour::EndpointIndependent,
        filtering: FilteringBehaviour::EndpointIndependent,
        hairpins: true,
        preserves_ports: true,
        udp: true,
    };

    /// Firewall that passes only responses, without translation.
    pub const FIREWALL: Self = Self {
        filtering: FilteringBehaviour::AddressAndPortDependent,
        ..Self::OPEN
    };

    /// NAT with random ports and without hairpinning.
    pub const fn nat(mapping: MappingBehaviour, filtering: FilteringBehaviour) -> Self {
        Self {
            translates: true,
            mapping,
            filtering,
            hairpins: false,
            preserves_ports: false,
            udp: true,
        }
    }

    /// Returns the name from RFC 3489 section 5, or the closest one.
    pub fn common_name(&self) -> &'static str {
        match (self.translates, self.mapping, self.filtering) {
            (false, _, FilteringBehaviour::EndpointIndependent) => "none",
            (false, _, _) => "firewall",
            (
                true,
                MappingBehaviour::EndpointIndependent,
                FilteringBehaviour::EndpointIndependent,
            ) => "full cone",
            (true, MappingBehaviour::EndpointIndependent, FilteringBehaviour::AddressDependent) => {
                "restricted cone"
            }
            (
                true,
                MappingBehaviour::EndpointIndependent,
                FilteringBehaviour::AddressAndPortDependent,
            ) => "port-restricted cone",
            (true, _, _) => "symmetric",
        }
    }
}
