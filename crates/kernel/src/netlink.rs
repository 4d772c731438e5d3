//! Links, addresses and routes over rtnetlink (`man 7 rtnetlink`), blocking: a request is sent, its answer awaited.
//!
//! A netlink socket belongs to the network namespace in which it was opened, whatever namespace its owner joins later.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// The index of the loopback device: the first of every network namespace.
pub(crate) const LOOPBACK: u32 = 1;

/// `RT_TABLE_LOCAL` of `<linux/rtnetlink.h>`: addresses that are the namespace's own. It is asked before all others.
const TABLE_LOCAL: u8 = 255;

/// A socket for requests in one network namespace.
pub(crate) struct Rtnl {
    socket: Socket,
    sequence: u32,
}

/// Where a route leads.
pub(crate) struct Route {
    /// Packets to this network: an address and the length of its prefix; `None`: to every address.
    pub(crate) to: Option<(Ipv4Addr, u8)>,
    /// The next hop, when the destination is not on the link itself.
    pub(crate) via: Option<Ipv4Addr>,
    /// The device.
    pub(crate) device: u32,
    /// The source address of packets that have none yet.
    pub(crate) source: Option<Ipv4Addr>,
}

/// One veth pair, of which the far end is made in another namespace. Making it there costs nothing, while moving it
/// later waits for an RCU grace period.
pub(crate) struct Veth<'a> {
    /// The near end's name.
    pub(crate) near: &'a str,
    /// The far end's name.
    pub(crate) far: &'a str,
    /// The far end's index: must be free in its namespace.
    pub(crate) far_index: u32,
    /// The far end's namespace.
    pub(crate) far_namespace: BorrowedFd<'a>,
    /// The Ethernet addresses of the near and the far end.
    pub(crate) macs: [Mac; 2],
}

/// An Ethernet address.
pub(crate) type Mac = [u8; 6];

impl Rtnl {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The index of a device by its name.
    pub(crate) fn index(&self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(self.socket.as_fd(), name)?)
    }

    /// Sets a device up.
    pub(crate) fn up(&mut self, device: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = device;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Gives a device an address with a prefix of 32 bits.
    pub(crate) fn address(&mut self, device: u32, address: Ipv4Addr) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = 32;
        message.header.scope = AddressScope::Universe;
        message.header.index = device;
        message.attributes = vec![AddressAttribute::Local(address.into()), AddressAttribute::Address(address.into())];
        self.request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Adds a route, or turns an older one to the same destination: the kernel takes a dead instance's device down some
    /// time after its end, and its address may have been given to a new one by then.
    pub(crate) fn route(&mut self, route: &Route) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.header.scope = if route.via.is_some() { RouteScope::Universe } else { RouteScope::Link };
        message.header.destination_prefix_length = route.to.map_or(0, |(_, length)| length);
        let to = route.to.map(|(to, _)| RouteAttribute::Destination(RouteAddress::Inet(to)));
        let via = route.via.map(|via| RouteAttribute::Gateway(RouteAddress::Inet(via)));
        let source = route.source.map(|source| RouteAttribute::PrefSource(RouteAddress::Inet(source)));
        message.attributes = [to, via, source, Some(RouteAttribute::Oif(route.device))].into_iter().flatten().collect();
        self.request(RouteNetlinkMessage::NewRoute(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Has the namespace take packets to an address for its own, as it does with those of its devices; done already is done.
    pub(crate) fn answer_for(&mut self, address: Ipv4Addr) -> io::Result<()> {
        self.answer_for_all(address, 32)
    }

    /// The same for all addresses of a network, by the length of its prefix.
    pub(crate) fn answer_for_all(&mut self, network: Ipv4Addr, length: u8) -> io::Result<()> {
        self.request(RouteNetlinkMessage::NewRoute(local(network.into(), length)), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// As [`answer_for`](Self::answer_for). `lo` must have IPv6.
    pub(crate) fn answer_for_v6(&mut self, address: Ipv6Addr) -> io::Result<()> {
        self.request(RouteNetlinkMessage::NewRoute(local(address.into(), 128)), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Takes that back.
    pub(crate) fn answer_no_more(&mut self, address: Ipv4Addr) -> io::Result<()> {
        self.request(RouteNetlinkMessage::DelRoute(local(address.into(), 32)), 0)
    }

    /// Makes a veth pair; the near end is up.
    pub(crate) fn veth(&mut self, veth: &Veth<'_>) -> io::Result<()> {
        let mut far = LinkMessage::default();
        far.header.index = veth.far_index;
        far.attributes = vec![
            LinkAttribute::IfName(veth.far.to_owned()),
            LinkAttribute::NetNsFd(veth.far_namespace.as_raw_fd()),
            LinkAttribute::Address(veth.macs[1].to_vec()),
        ];
        let mut near = LinkMessage::default();
        near.header.flags = LinkFlags::Up;
        near.header.change_mask = LinkFlags::Up;
        near.attributes = vec![
            LinkAttribute::IfName(veth.near.to_owned()),
            LinkAttribute::Address(veth.macs[0].to_vec()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(far))),
            ]),
        ];
        self.request(RouteNetlinkMessage::NewLink(near), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Sends a request and waits until the kernel has done or refused it.
    pub(crate) fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut packet = NetlinkMessage::from(message);
        self.sequence += 1;
        packet.header.sequence_number = self.sequence;
        packet.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        packet.finalize();
        let mut buffer = vec![0; packet.buffer_len()];
        packet.serialize(&mut buffer);
        self.socket.send(&buffer, 0)?;
        self.acknowledged()
    }

    fn acknowledged(&mut self) -> io::Result<()> {
        loop {
            let (answer, _) = self.socket.recv_from_full()?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer).map_err(io::Error::other)?;
            match answer.payload {
                NetlinkPayload::Error(error) if answer.header.sequence_number == self.sequence => {
                    return if error.code.is_some() { Err(error.to_io()) } else { Ok(()) };
                }
                _ => {} // an answer to an earlier request that was given up
            }
        }
    }
}

/// `ip route … local ADDRESS/LENGTH dev lo`: see ip-route(8).
fn local(address: IpAddr, length: u8) -> RouteMessage {
    let mut message = RouteMessage::default();
    let (family, to) = match address {
        IpAddr::V4(v4) => (AddressFamily::Inet, RouteAddress::Inet(v4)),
        IpAddr::V6(v6) => (AddressFamily::Inet6, RouteAddress::Inet6(v6)),
    };
    message.header.address_family = family;
    message.header.table = TABLE_LOCAL;
    message.header.protocol = RouteProtocol::Static;
    message.header.kind = RouteType::Local;
    message.header.scope = RouteScope::Host;
    message.header.destination_prefix_length = length;
    message.attributes = vec![RouteAttribute::Destination(to), RouteAttribute::Oif(LOOPBACK)];
    message
}
