//! Devices, addresses and routes of one network namespace, for whoever cables namespaces together by hand.
//!
//! Instances and stations have their own ways ([`crate::sandbox`], [`crate::station`]), made for starting fast. This one is
//! for any prefix, IPv6 as well as IPv4, and for devices that exist already.

use std::io;
use std::net::IpAddr;
use std::os::fd::BorrowedFd;

use netlink_packet_core::{NLM_F_CREATE, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::namespace;
use crate::netlink::{LOOPBACK, Rtnl, Veth};
use crate::switch::write_settings;

/// No address of its own making, no packet that nobody asked for: what is seen on a device was sent by a program.
const QUIET: &[(&str, &str)] = &[
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/router_solicitations", "0"),
    ("ipv6/conf/default/addr_gen_mode", "1"),
];

/// An address with the length of its prefix.
pub type Prefix = (IpAddr, u8);

/// Makes a network namespace in which only loopback is up and nothing is sent unasked.
///
/// # Errors
/// Without `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`.
pub fn quiet_namespace() -> io::Result<std::os::fd::OwnedFd> {
    namespace::create(|| {
        write_settings(QUIET)?;
        Rtnl::open()?.up(LOOPBACK)
    })
}

/// What can be done to the devices of one namespace.
pub struct Devices(Rtnl);

impl Devices {
    /// Those of the calling thread's network namespace, also after the thread has left it.
    ///
    /// # Errors
    /// When the process has too many files open.
    pub fn open() -> io::Result<Self> {
        Rtnl::open().map(Self)
    }

    /// The index of a device by its name.
    ///
    /// # Errors
    /// When there is none.
    pub fn index(&self, name: &str) -> io::Result<u32> {
        self.0.index(name)
    }

    /// Makes a pair of devices, one here and one in another namespace: what is sent on one arrives at the other (veth(4)). Nobody asks
    /// who is at the other end: both have one Ethernet address, and no ARP.
    ///
    /// # Errors
    /// When a name is taken, or the kernel has no veth.
    pub fn pair(&mut self, near: &str, (far, there): (&str, BorrowedFd<'_>)) -> io::Result<()> {
        let mac = [2, 0, 0, 0, 0, 1]; // locally administered: nobody else sees it
        self.0.veth(&Veth { near, far, far_index: 0, far_namespace: there, macs: [mac; 2] })
    }

    /// Has a device ask nobody for Ethernet addresses: all that is sent on it goes to whoever is at its other end.
    ///
    /// # Errors
    /// Without such a device.
    pub fn ask_nobody(&mut self, device: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = device;
        link.header.flags = LinkFlags::Noarp;
        link.header.change_mask = LinkFlags::Noarp;
        self.0.request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Sets a device up, without multicast, so that the kernel announces no groups on it.
    ///
    /// # Errors
    /// Without such a device.
    pub fn up(&mut self, device: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = device;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up | LinkFlags::Multicast;
        self.0.request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Sets the largest packet that the device takes, in octets, and how many wait in it until they are read.
    ///
    /// # Errors
    /// When the device does not allow that.
    pub fn size(&mut self, device: u32, mtu: u32, waiting: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = device;
        link.attributes = vec![LinkAttribute::Mtu(mtu), LinkAttribute::TxQueueLen(waiting)];
        self.0.request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Gives a device an address; the rest of its prefix is on the device, too. An IPv6 address can be used at once.
    ///
    /// # Errors
    /// Without such a device, or when the kernel has no IPv6.
    pub fn address(&mut self, device: u32, (address, prefix): Prefix) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = family(address);
        message.header.prefix_len = prefix;
        message.header.index = device;
        message.header.flags = AddressHeaderFlags::Nodad;
        message.attributes = vec![
            AddressAttribute::Local(address),
            AddressAttribute::Address(address),
            AddressAttribute::Flags(AddressFlags::Nodad),
        ];
        self.0.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Adds a route, or turns an older one to the same destination. Without `via` the destination is on the device itself.
    ///
    /// # Errors
    /// When the next hop cannot be reached by that device.
    pub fn route(&mut self, (to, prefix): Prefix, via: Option<IpAddr>, device: u32) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(to);
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.header.scope = if via.is_some() { RouteScope::Universe } else { RouteScope::Link };
        message.header.destination_prefix_length = prefix;
        let to = (prefix > 0).then(|| RouteAttribute::Destination(to.into()));
        let via = via.map(|via| RouteAttribute::Gateway(RouteAddress::from(via)));
        message.attributes = [to, via, Some(RouteAttribute::Oif(device))].into_iter().flatten().collect();
        self.0.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}
