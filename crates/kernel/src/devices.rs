//! Devices, addresses and routes of one network namespace, for test networks.
//!
//! Instances and attached namespaces have code of their own ([`crate::sandbox`],
//! [`crate::attached_netns`]), optimised for fast starts. [`NetworkDevices`] handles any prefix,
//! IPv4 and IPv6, and existing devices.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage,
};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::hub_netns::write_sysctls;
use crate::namespace;
use crate::netlink::{LOOPBACK_INDEX, RtnlSocket, VethPair};

/// Settings that keep the kernel from sending packets by itself: every packet on a device comes
/// from a program.
const QUIET_SYSCTLS: &[(&str, &str)] = &[
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
    ("ipv6/conf/default/addr_gen_mode", "1"),
];

/// An address and the length of its prefix.
pub type IpPrefix = (IpAddr, u8);

/// Creates a network namespace in which only loopback is up and the kernel sends nothing by itself.
///
/// # Errors
/// Fails without `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`.
pub fn create_quiet_namespace() -> io::Result<std::os::fd::OwnedFd> {
    namespace::create_netns(|| {
        write_sysctls(QUIET_SYSCTLS)?;
        RtnlSocket::open()?.set_up(LOOPBACK_INDEX)
    })
}

/// A handle to configure the devices of one namespace.
pub struct NetworkDevices(RtnlSocket);

impl NetworkDevices {
    /// Opens the calling thread's network namespace. The handle stays valid when the thread leaves
    /// it.
    ///
    /// # Errors
    /// Fails when the process has too many open files.
    pub fn open() -> io::Result<Self> {
        RtnlSocket::open().map(Self)
    }

    /// Returns the index of the device with a name.
    ///
    /// # Errors
    /// Fails without such a device.
    pub fn device_index(&self, name: &str) -> io::Result<u32> {
        self.0.device_index(name)
    }

    /// Creates a veth pair (veth(4)) between this namespace and another one. Both ends have the
    /// same Ethernet address and no ARP.
    ///
    /// # Errors
    /// Fails when a name is taken, or the kernel has no veth.
    pub fn create_veth_pair(
        &mut self,
        near: &str,
        (far, there): (&str, BorrowedFd<'_>),
    ) -> io::Result<()> {
        let mac = [2, 0, 0, 0, 0, 1]; // locally administered; only this pair uses it
        self.0.create_veth_pair(&VethPair {
            near,
            far,
            far_index: 0,
            far_namespace: there,
            macs: [mac; 2],
        })
    }

    /// Turns ARP off: all frames go to the other end of the link.
    ///
    /// # Errors
    /// Fails without such a device.
    pub fn disable_arp(&mut self, device: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = device;
        link.header.flags = LinkFlags::Noarp;
        link.header.change_mask = LinkFlags::Noarp;
        self.0.send_request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Sets a device up without multicast, so that the kernel announces no group memberships.
    ///
    /// # Errors
    /// Fails without such a device.
    pub fn set_up(&mut self, device: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = device;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up | LinkFlags::Multicast;
        self.0.send_request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Sets a device's MTU in octets, and the length of its transmit queue in packets.
    ///
    /// # Errors
    /// Fails when the device does not support the values.
    pub fn set_mtu(&mut self, device: u32, mtu: u32, waiting: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = device;
        link.attributes = vec![LinkAttribute::Mtu(mtu), LinkAttribute::TxQueueLen(waiting)];
        self.0.send_request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Adds an address whose prefix is on the link. An IPv6 address is usable at once.
    ///
    /// # Errors
    /// Fails without such a device, or when the kernel has no IPv6.
    pub fn add_address(&mut self, device: u32, (address, prefix): IpPrefix) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = address_family(address);
        message.header.prefix_len = prefix;
        message.header.index = device;
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes = vec![
            AddressAttribute::Local(address),
            AddressAttribute::Address(address),
            // The header's flags have eight bits; kernels with IPv6 read this attribute instead.
            AddressAttribute::Flags(AddressFlags::Nodad),
        ];
        self.0.send_request(
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Adds or replaces the route to a destination. Without `via` the destination is on the link.
    ///
    /// # Errors
    /// Fails when the next hop is not reachable through that device.
    pub fn add_route(
        &mut self,
        (to, prefix): IpPrefix,
        via: Option<IpAddr>,
        device: u32,
    ) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = address_family(to);
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.header.scope = if via.is_some() {
            RouteScope::Universe
        } else {
            RouteScope::Link
        };
        message.header.destination_prefix_length = prefix;
        // A default route is one without a destination.
        let to = (prefix > 0).then(|| RouteAttribute::Destination(to.into()));
        let via = via.map(|via| RouteAttribute::Gateway(RouteAddress::from(via)));
        message.attributes = [to, via, Some(RouteAttribute::Oif(device))]
            .into_iter()
            .flatten()
            .collect();
        self.0.send_request(
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }
}

fn address_family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() {
        AddressFamily::Inet
    } else {
        AddressFamily::Inet6
    }
}
