//! Kinds of NAT, by the words of RFC 4787 (UDP) and RFC 5382 (TCP): what is found out, and what theory permits.
//!
//! [`NatDetector`] folds observations of the rendezvous into a [`Report`]; [`can_connect`] says whether two kinds can meet without a
//! relay. Neither decides anything for the agent, which tries: they tell people why a pair ended where it did, and tests
//! what must succeed.

mod compatibility;
mod detect;

pub use compatibility::{NatRelation, can_connect};
pub use detect::{NatDetector, NatObservation, NatReport, ObserverSocket};

/// On what the address that others see depends (RFC 4787 section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum MappingBehaviour {
    /// On the socket alone: endpoint-independent.
    EndpointIndependent,
    /// On the address it sends to, too: address-dependent.
    AddressDependent,
    /// On the address and port it sends to, too: address and port-dependent ("symmetric").
    AddressAndPortDependent,
}

/// Whose packets come in (RFC 4787 section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FilteringBehaviour {
    /// Everybody's: endpoint-independent ("full cone").
    EndpointIndependent,
    /// Those of addresses that were sent to: address-dependent ("restricted").
    AddressDependent,
    /// Those of addresses and ports that were sent to: address and port-dependent ("port-restricted").
    AddressAndPortDependent,
}

/// How what stands between a worker and the public network behaves, all of it together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Behaviour {
    /// Others see another address than the machine's own; else it is a firewall, or nothing.
    pub translates: bool,
    /// See [`MappingBehaviour`].
    pub mapping: MappingBehaviour,
    /// See [`FilteringBehaviour`].
    pub filtering: FilteringBehaviour,
    /// Packets from inside to an address that it gave to somebody inside arrive (RFC 4787 section 6).
    pub hairpins: bool,
    /// The port that others see is the socket's own, when it is free. Of no use for punching: the port is looked up.
    pub preserves_ports: bool,
    /// UDP comes through.
    pub udp: bool,
}

impl Behaviour {
    /// Nothing stands between.
    pub const OPEN: Self = Self {
        translates: false,
        mapping: MappingBehaviour::EndpointIndependent,
        filtering: FilteringBehaviour::EndpointIndependent,
        hairpins: true,
        preserves_ports: true,
        udp: true,
    };

    /// A firewall that lets nobody in who was not spoken to, and translates nothing.
    pub const FIREWALL: Self = Self {
        filtering: FilteringBehaviour::AddressAndPortDependent,
        ..Self::OPEN
    };

    /// A NAT that gives ports at random and does not hairpin.
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

    /// The name that people use (RFC 3489 section 5), as far as there is one.
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
