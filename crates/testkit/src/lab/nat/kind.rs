//! Kinds of NATs and firewalls in terms of RFC 4787 and RFC 5382.

use std::time::Duration;

use crate::lab::LinkConditions;

/// Routers between the machines of a site and the internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NatKind {
    /// A router without translation; the machines have public IPv4 addresses.
    None,
    /// A NAT that accepts packets from everybody at a mapped port.
    FullCone,
    /// A NAT that accepts packets from contacted addresses, from any port.
    Restricted,
    /// A NAT that accepts packets from contacted addresses and ports only: Linux's default.
    PortRestricted,
    /// Linux's `masquerade` alone, without a filter. It differs from [`NatKind::PortRestricted`]
    /// for packets of strangers: the router takes them as its own. A SYN gets an RST, a datagram an
    /// ICMP error, and the datagram's flow occupies the outside port towards that stranger.
    /// [`NatPlan::hairpin`] and [`NatPlan::refuses_packets`] have no effect.
    Masquerade,
    /// A NAT with another, random port for each destination, which accepts packets from that
    /// destination only.
    Symmetric,
    /// A port-restricted NAT behind another one: the customer's and the provider's (RFC 6598
    /// addresses between them).
    Double,
    /// No translation: machines have public IPv4 addresses, and only contacted peers are accepted.
    Firewall,
    /// Like [`NatKind::PortRestricted`], but UDP is blocked.
    UdpBlocked,
    /// IPv6 only: public addresses behind a firewall, as in [`NatKind::Firewall`]. The machines
    /// have no IPv4 address.
    V6Only,
    /// IPv4 as in [`NatKind::PortRestricted`], IPv6 as in [`NatKind::V6Only`]. All other kinds have
    /// IPv4 only.
    DualStack,
}

/// Mapping of an inside address and port to an outside one (RFC 4787, section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LabMapping {
    /// Nothing is translated.
    Unchanged,
    /// The same mapping for all destinations.
    EndpointIndependent,
    /// A mapping for each destination address.
    AddressDependent,
    /// A mapping for each destination address and port.
    AddressAndPortDependent,
}

/// Senders whose packets to a mapped port are accepted (RFC 4787, section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LabFiltering {
    /// All senders.
    EndpointIndependent,
    /// Contacted addresses.
    AddressDependent,
    /// Contacted addresses and ports.
    AddressAndPortDependent,
}

/// Versions of the internet protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Plan of a site. A [`NatKind`] alone is a plan without options.
///
/// ```
/// use nearpath_testkit::lab::nat::{NatKind, NatPlan};
/// let plan = NatPlan { hairpin: true, ..NatKind::FullCone.into() };
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NatPlan {
    /// Kind of its routers.
    pub kind: NatKind,
    /// Lets machines of the site reach each other by their outside addresses (RFC 4787, section 6).
    /// Their packets come from the sender's outside address, and [`LabFiltering`] does not apply to
    /// them. Without it they are dropped.
    pub hairpin: bool,
    /// Answers refused packets with an RST, which ends a TCP simultaneous open, or with an ICMP
    /// error. Otherwise they are dropped.
    pub refuses_packets: bool,
    /// Idle time after which a NAT or firewall deletes a UDP flow, in whole seconds.
    pub lifetime: Duration,
    /// Conditions of the link between the site and the internet.
    pub conditions: LinkConditions,
    /// Uses links of kernel devices within the site ([`LinkConditions::is_plain`]): they cost less,
    /// and cannot be changed.
    pub is_plain: bool,
}

impl From<NatKind> for NatPlan {
    fn from(kind: NatKind) -> Self {
        // RFC 4787, REQ-5: not less than two minutes.
        Self {
            kind,
            hairpin: false,
            refuses_packets: false,
            lifetime: Duration::from_secs(120),
            conditions: LinkConditions::default(),
            is_plain: false,
        }
    }
}

impl NatKind {
    /// Every kind, for tests of all pairs.
    pub const ALL: [Self; 11] = [
        Self::None,
        Self::FullCone,
        Self::Restricted,
        Self::PortRestricted,
        Self::Masquerade,
        Self::Symmetric,
        Self::Double,
        Self::Firewall,
        Self::UdpBlocked,
        Self::V6Only,
        Self::DualStack,
    ];

    /// Mapping of outgoing packets; `None`: the site does not have that family.
    pub fn mapping_of(self, family: IpFamily) -> Option<LabMapping> {
        match (self, family) {
            (Self::V6Only | Self::DualStack, IpFamily::V6)
            | (Self::None | Self::Firewall, IpFamily::V4) => Some(LabMapping::Unchanged),
            (Self::V6Only, IpFamily::V4) | (_, IpFamily::V6) => None,
            (Self::Symmetric, IpFamily::V4) => Some(LabMapping::AddressAndPortDependent),
            (_, IpFamily::V4) => Some(LabMapping::EndpointIndependent),
        }
    }

    /// Filtering of incoming packets; `None`: the site does not have that family.
    pub fn filtering_of(self, family: IpFamily) -> Option<LabFiltering> {
        self.mapping_of(family)?;
        Some(match self {
            Self::None | Self::FullCone => LabFiltering::EndpointIndependent,
            Self::Restricted => LabFiltering::AddressDependent,
            _ => LabFiltering::AddressAndPortDependent,
        })
    }

    /// Returns true if UDP passes.
    pub fn passes_udp(self) -> bool {
        self != Self::UdpBlocked
    }

    /// Number of routers between its machines and the internet.
    pub(super) fn router_count(self) -> usize {
        if self == Self::Double { 2 } else { 1 }
    }
}
