//! Kinds of NAT, by the words of RFC 4787 (UDP) and RFC 5382 (TCP): what is found out, and what theory permits.
//!
//! [`Detector`] folds observations of the rendezvous into a [`Report`]; [`can`] says whether two kinds can meet without a
//! relay. Neither decides anything for the agent, which tries: they tell people why a pair ended where it did, and tests
//! what must succeed.

mod compatibility;
mod detect;

pub use compatibility::{Between, can};
pub use detect::{Detector, Observation, Report, Server};

/// On what the address that others see depends (RFC 4787 section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mapping {
    /// On the socket alone: endpoint-independent.
    Independent,
    /// On the address it sends to, too: address-dependent.
    Address,
    /// On the address and port it sends to, too: address and port-dependent ("symmetric").
    AddressAndPort,
}

/// Whose packets come in (RFC 4787 section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Filtering {
    /// Everybody's: endpoint-independent ("full cone").
    Independent,
    /// Those of addresses that were sent to: address-dependent ("restricted").
    Address,
    /// Those of addresses and ports that were sent to: address and port-dependent ("port-restricted").
    AddressAndPort,
}

/// How what stands between a worker and the public network behaves, all of it together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Behaviour {
    /// Others see another address than the machine's own; else it is a firewall, or nothing.
    pub translates: bool,
    /// See [`Mapping`].
    pub mapping: Mapping,
    /// See [`Filtering`].
    pub filtering: Filtering,
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
        mapping: Mapping::Independent,
        filtering: Filtering::Independent,
        hairpins: true,
        preserves_ports: true,
        udp: true,
    };

    /// A firewall that lets nobody in who was not spoken to, and translates nothing.
    pub const FIREWALL: Self = Self { filtering: Filtering::AddressAndPort, ..Self::OPEN };

    /// A NAT that gives ports at random and does not hairpin.
    pub const fn nat(mapping: Mapping, filtering: Filtering) -> Self {
        Self { translates: true, mapping, filtering, hairpins: false, preserves_ports: false, udp: true }
    }

    /// The name that people use (RFC 3489 section 5), as far as there is one.
    pub fn common_name(&self) -> &'static str {
        match (self.translates, self.mapping, self.filtering) {
            (false, _, Filtering::Independent) => "none",
            (false, _, _) => "firewall",
            (true, Mapping::Independent, Filtering::Independent) => "full cone",
            (true, Mapping::Independent, Filtering::Address) => "restricted cone",
            (true, Mapping::Independent, Filtering::AddressAndPort) => "port-restricted cone",
            (true, _, _) => "symmetric",
        }
    }
}
