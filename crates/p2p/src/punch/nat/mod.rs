//! Kinds of NAT, in the terms of RFC 4787 (UDP) and RFC 5382 (TCP): detection, and what theory
//! permits.
//!
//! [`NatDetector`] folds observations into a [`NatReport`]; [`can_connect`] says whether two kinds
//! can connect without a relay. Neither decides for the agent, which always tries. They explain
//! outcomes to people, and tell tests what must succeed.

mod compatibility;
mod detect;

pub use compatibility::{NatRelation, can_connect};
pub use detect::{NatDetector, NatObservation, NatReport, ObserverSocket};

/// Dependence of the mapped address on the destination (RFC 4787 section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MappingBehaviour {
    /// On the socket alone.
    EndpointIndependent,
    /// On the destination address, too.
    AddressDependent,
    /// On the destination address and port, too ("symmetric").
    AddressAndPortDependent,
}

/// Sources whose packets pass (RFC 4787 section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FilteringBehaviour {
    /// Every source ("full cone").
    EndpointIndependent,
    /// Addresses that were sent to ("restricted").
    AddressDependent,
    /// Addresses and ports that were sent to ("port-restricted").
    AddressAndPortDependent,
}

/// Behaviour of everything between a worker and the public network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NatBehaviour {
    /// True if the mapped address differs from the machine's own. Otherwise there is a firewall, or
    /// nothing.
    pub translates: bool,
    /// See [`MappingBehaviour`].
    pub mapping: MappingBehaviour,
    /// See [`FilteringBehaviour`].
    pub filtering: FilteringBehaviour,
    /// True if packets from inside reach a mapped address of another inside host (RFC 4787 section
    /// 6).
    pub hairpins: bool,
    /// True if the mapped port is the socket's own, if free. Irrelevant for punching, which learns
    /// the port.
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

    /// Firewall that admits only answers, without translation.
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

    /// Returns the common name (RFC 3489 section 5), as far as there is one.
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
