//! What the routers of a site do to packets, by name and in the words of RFC 4787 and RFC 5382.

use std::time::Duration;

use crate::lab::LinkConditions;

/// What stands between the machines of a site and the internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NatKind {
    /// A router that only routes; the machines have public IPv4 addresses.
    None,
    /// A NAT that lets everybody in at a port it has given out.
    FullCone,
    /// A NAT that lets in whom was written to from that port: the address counts, its port does not.
    Restricted,
    /// A NAT that lets in who was written to from that port, address and port: what Linux does by itself.
    PortRestricted,
    /// A NAT with another, random port for each destination, which lets in the destination alone.
    Symmetric,
    /// A port-restricted NAT behind another one: at home, and the provider's (RFC 6598 addresses between them).
    Double,
    /// No translation: machines have public IPv4 addresses, and only who was written to gets in.
    Firewall,
    /// As [`NatKind::PortRestricted`], but no UDP passes.
    UdpBlocked,
    /// IPv6 alone: public addresses behind a firewall, as in [`NatKind::Firewall`]. The machines have no IPv4 address.
    V6Only,
    /// IPv4 as in [`NatKind::PortRestricted`], IPv6 as in [`NatKind::V6Only`]. All other kinds have IPv4 alone.
    DualStack,
}

/// Which outside address and port packets from one inside address and port get (RFC 4787, section 4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LabMapping {
    /// They keep their own: nothing is translated.
    Unchanged,
    /// The same one, whoever they go to.
    EndpointIndependent,
    /// One for each address they go to.
    AddressDependent,
    /// One for each address and port they go to.
    AddressAndPortDependent,
}

/// Whose packets to that outside address and port are let in (RFC 4787, section 5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LabFiltering {
    /// Everybody's.
    EndpointIndependent,
    /// Those of addresses that were written to.
    AddressDependent,
    /// Those of addresses and ports that were written to.
    AddressAndPortDependent,
}

/// The versions of the internet protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A site as its user asks for it. A [`NatKind`] alone is one without extras.
///
/// ```
/// use nearpath_testkit::lab::nat::{Kind, Plan};
/// let plan = Plan { hairpin: true, ..Kind::FullCone.into() };
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct NatPlan {
    /// What its routers do.
    pub kind: NatKind,
    /// Whether machines of the site reach each other by their outside addresses (RFC 4787, section 6). The packets come from
    /// the sender's outside address, and [`LabFiltering`] does not apply to them. Without it they are dropped.
    pub hairpin: bool,
    /// Whether who is not let in is told so: by a RST (which ends a TCP connection that was about to open from both sides) or
    /// an ICMP error. Otherwise packets vanish.
    pub refuses_packets: bool,
    /// After what time of silence a NAT or firewall forgets a UDP flow; whole seconds.
    pub lifetime: Duration,
    /// The line between the site and the internet.
    pub conditions: LinkConditions,
    /// Whether the cables within the site are plain ones ([`LinkConditions::is_plain`]): they cost less, and cannot be changed.
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
    /// Every kind, for tests of all against all.
    pub const ALL: [Self; 10] = [
        Self::None,
        Self::FullCone,
        Self::Restricted,
        Self::PortRestricted,
        Self::Symmetric,
        Self::Double,
        Self::Firewall,
        Self::UdpBlocked,
        Self::V6Only,
        Self::DualStack,
    ];

    /// What becomes of packets that leave; `NoConnection`: the site does not have that family.
    pub fn mapping_of(self, family: IpFamily) -> Option<LabMapping> {
        match (self, family) {
            (Self::V6Only | Self::DualStack, IpFamily::V6)
            | (Self::None | Self::Firewall, IpFamily::V4) => Some(LabMapping::Unchanged),
            (Self::V6Only, IpFamily::V4) | (_, IpFamily::V6) => None,
            (Self::Symmetric, IpFamily::V4) => Some(LabMapping::AddressAndPortDependent),
            (_, IpFamily::V4) => Some(LabMapping::EndpointIndependent),
        }
    }

    /// Who gets in; `NoConnection`: the site does not have that family.
    pub fn filtering_of(self, family: IpFamily) -> Option<LabFiltering> {
        self.mapping_of(family)?;
        Some(match self {
            Self::None | Self::FullCone => LabFiltering::EndpointIndependent,
            Self::Restricted => LabFiltering::AddressDependent,
            _ => LabFiltering::AddressAndPortDependent,
        })
    }

    /// Whether UDP passes at all.
    pub fn passes_udp(self) -> bool {
        self != Self::UdpBlocked
    }

    /// How many routers are between its machines and the internet.
    pub(super) fn router_count(self) -> usize {
        if self == Self::Double { 2 } else { 1 }
    }
}
