//! Which addresses the parts of the lab's internet have.
//!
//! Every cable is a network of two hosts. Private addresses are the same in every site, as they are in homes: a peer's
//! 192.168.1.2 may be one's own.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::kind::{IpFamily, LabMapping, NatKind};
use crate::lab::{LabNode, LinkEnd};

/// The network of one cable: the bases of its addresses, where it has them.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinkNetwork {
    v4: Option<Ipv4Addr>,
    v6: Option<Ipv6Addr>,
}

impl LinkNetwork {
    /// Between the internet and the rendezvous.
    pub(super) const RENDEZVOUS: Self = Self {
        v4: Some(Ipv4Addr::new(203, 0, 113, 0)),
        v6: Some(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0)),
    };

    /// Between the internet and a site's outermost router.
    pub(super) fn provider_line(site: u8) -> Self {
        let v6 = Ipv6Addr::new(0x2001, 0xdb8, 0, 0x100 + u16::from(site), 0, 0, 0, 0);
        Self {
            v4: Some(Ipv4Addr::new(198, 18, site, 0)),
            v6: Some(v6),
        }
    }

    /// Between the provider's NAT and the one at home.
    pub(super) fn carrier_network() -> Self {
        Self {
            v4: Some(Ipv4Addr::new(100, 64, 0, 0)),
            v6: None,
        }
    }

    /// Between a site's innermost router and a machine; public where nothing is translated.
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

    /// The IPv4 address of the first or second host; unspecified where there is none.
    pub(super) fn host_v4(self, host: u8) -> Ipv4Addr {
        self.v4.map_or(Ipv4Addr::UNSPECIFIED, |base| {
            (base.to_bits() + u32::from(host)).into()
        })
    }

    /// Likewise for IPv6.
    pub(super) fn host_v6(self, host: u8) -> Ipv6Addr {
        self.v6.map_or(Ipv6Addr::UNSPECIFIED, |base| {
            (base.to_bits() + u128::from(host)).into()
        })
    }

    /// The end of the cable that has the `host`th address.
    pub(super) fn link_end(self, host: u8, node: &LabNode, device: impl Into<String>) -> LinkEnd {
        LinkEnd {
            node: node.clone(),
            device: device.into(),
            v4: self.host_v4(host),
            v6: self.host_v6(host),
        }
    }
}

/// The networks of a site's public addresses: those of its machines where nothing is translated.
pub(super) fn site_networks(site: u8) -> (Ipv4Addr, Ipv6Addr) {
    (
        Ipv4Addr::new(198, 19, site, 0),
        Ipv6Addr::new(0x2001, 0xdb8, 1 + u16::from(site), 0, 0, 0, 0, 0),
    )
}

/// The rendezvous's other addresses.
pub(super) const SECOND_ADDRESSES: (Ipv4Addr, Ipv6Addr) = (
    Ipv4Addr::new(198, 51, 100, 1),
    Ipv6Addr::new(0x2001, 0xdb8, 0xffff, 0, 0, 0, 0, 1),
);
