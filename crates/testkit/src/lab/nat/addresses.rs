//! Addresses of the lab's internet.
//!
//! Every link is a network of two hosts. Private addresses are the same in every site, as in real
//! networks: a peer's 192.168.1.2 may also be a local address.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::kind::{IpFamily, LabMapping, NatKind};
use crate::lab::{LabNode, LinkEnd};

/// Network of one link: the base addresses of the families that it has.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkNetwork {
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

impl LinkNetwork {
    /// Network between the internet and the rendezvous.
    pub(super) const RENDEZVOUS: Self = Self {
        v4: Some(Ipv4Addr::new(203, 0, 113, 0)),
        v6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0)),
    };

    /// Network between the internet and a site's outermost router.
    pub(super) fn provider_line(site: u8) -> Self {
        let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0x100 + u16::from(site), 0, 0, 0, 0);
        Self {
            v4: Some(Ipv4Addr::new(198, 18, site, 0)),
            v6: Some(v6),
        }
    }

    /// Network between the provider's NAT and the customer's.
    pub(super) fn carrier_network() -> Self {
        Self {
            v4: Some(Ipv4Addr::new(100, 64, 0, 0)),
            v6: None,
        }
    }

    /// Network between a site's innermost router and a machine; public where nothing is translated.
    pub(super) fn machine_network(kind: NatKind, site: u8, machine: u8) -> Self {
        let v4 = kind.mapping_of(IpFamily::V4).map(|mapping| match mapping {
            LabMapping::Unchanged => Ipv4Addr::new(198, 19, site, machine * 4),
            _ => Ipv4Addr::new(192, 168, 1, machine * 4),
        });
        let v6 = kind.mapping_of(IpFamily::V6).map(|_| {
            Ipv6Addr::new(
                0x2001,
                0xdb8,
                1 + u16::from(site),
                u16::from(machine),
                0,
                0,
                0,
                0,
            )
        });
        Self { v4, v6 }
    }

    /// IPv4 address of host 1 or 2, or unspecified.
    pub(super) fn host_v4(self, host: u8) -> Ipv4Addr {
        self.v4.map_or(Ipv4Addr::UNSPECIFIED, |base| {
            (base.to_bits() + u32::from(host)).into()
        })
    }

    /// IPv6 address of host 1 or 2, or unspecified.
    pub(super) fn host_v6(self, host: u8) -> Ipv6Addr {
        self.v6.map_or(Ipv6Addr::UNSPECIFIED, |base| {
            (base.to_bits() + u128::from(host)).into()
        })
    }

    /// End of the link with the address of `host`.
    pub(super) fn link_end(self, host: u8, node: &LabNode, device: impl Into<String>) -> LinkEnd {
        LinkEnd {
            node: node.clone(),
            device: device.into(),
            v4: self.host_v4(host),
            v6: self.host_v6(host),
        }
    }
}

/// Networks of a site's public addresses: those of its machines where nothing is translated.
pub(super) fn site_networks(site: u8) -> (Ipv4Addr, Ipv6Addr) {
    (
        Ipv4Addr::new(198, 19, site, 0),
        Ipv6Addr::new(0x2001, 0xdb8, 1 + u16::from(site), 0, 0, 0, 0, 0),
    )
}

/// Further addresses of the rendezvous.
pub(super) const SECOND_ADDRESSES: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(198, 51, 100, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1),
);
