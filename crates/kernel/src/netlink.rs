//! Links, addresses and routes over rtnetlink (`man 7 rtnetlink`). Requests block until the kernel
//! answers.
//!
//! A netlink socket belongs to the network namespace in which it was opened, even if its owner
//! moves to another one.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, State,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};

/// Index of the loopback device, the first one of every network namespace.
pub(crate) const LOOPBACK_INDEX: u32 = 1;

/// `RT_TABLE_LOCAL` of `<linux/rtnetlink.h>`: the namespace's own addresses. The kernel looks here
/// first.
const TABLE_LOCAL: u8 = 255;

/// Intervals between two checks of a device that does not run yet: each is twice the one before.
const MIN_RUNNING_CHECK_INTERVAL: Duration = Duration::from_micros(100);
const MAX_RUNNING_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Checks of a device: five seconds.
const MAX_RUNNING_CHECKS: u32 = 110;

/// Errors of a route lookup without a result. A family that the kernel lacks has no routes either.
const NO_ROUTE_ERRORS: [Option<i32>; 6] = [
    Some(libc::ENETUNREACH),
    Some(libc::EHOSTUNREACH),
    Some(libc::EACCES),
    Some(libc::EINVAL),
    Some(libc::EAFNOSUPPORT),
    Some(libc::EOPNOTSUPP),
];

/// A socket for requests to one network namespace.
pub(crate) struct RtnlSocket {
    socket: Socket,
    sequence: u32,
}

/// An IPv4 route.
pub(crate) struct Ipv4Route {
    /// Network of the route: an address and the length of its prefix. `None` is the default route.
    pub(crate) destination: Option<(Ipv4Addr, u8)>,
    /// Next hop; `None` for destinations on the link.
    pub(crate) next_hop: Option<Ipv4Addr>,
    /// Index of the outgoing device.
    pub(crate) device: u32,
    /// Source address of packets that have none yet.
    pub(crate) source: Option<Ipv4Addr>,
}

/// A veth pair whose far end is created in another namespace. Moving it there later would wait for
/// an RCU grace period.
pub(crate) struct VethPair<'a> {
    /// Name of the near end.
    pub(crate) near: &'a str,
    /// Name of the far end.
    pub(crate) far: &'a str,
    /// Index of the far end; must be free in its namespace.
    pub(crate) far_index: u32,
    /// Namespace of the far end.
    pub(crate) far_namespace: BorrowedFd<'a>,
    /// Ethernet addresses of the near and the far end.
    pub(crate) macs: [MacAddress; 2],
}

/// An Ethernet address.
pub(crate) type MacAddress = [u8; 6];

impl RtnlSocket {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Self> {
        let socket = Socket::new(NETLINK_ROUTE)?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Self {
            socket,
            sequence: 0,
        })
    }

    /// Returns the index of the device with a name.
    pub(crate) fn device_index(&self, name: &str) -> io::Result<u32> {
        Ok(rustix::net::netdevice::name_to_index(
            self.socket.as_fd(),
            name,
        )?)
    }

    /// Sets a device up.
    pub(crate) fn set_up(&mut self, device: u32) -> io::Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = device;
        link.header.flags = LinkFlags::Up;
        link.header.change_mask = LinkFlags::Up;
        self.send_request(RouteNetlinkMessage::SetLink(link), 0)
    }

    /// Waits until a device sends packets, at most some seconds. Both ends of its pair must be up.
    ///
    /// The kernel starts the queue of the end that was up first in a work item of its own
    /// (`net/core/link_watch.c`). Until then it drops every packet there, and the first connection
    /// to a ready instance takes a second more. That is all that a failure here costs.
    pub(crate) fn wait_running(&mut self, device: u32) {
        let mut interval = MIN_RUNNING_CHECK_INTERVAL;
        for _ in 0..MAX_RUNNING_CHECKS {
            if self.is_running(device).unwrap_or(true) {
                return;
            }
            std::thread::sleep(interval);
            // Each check takes the lock that the work item needs.
            interval = (interval * 2).min(MAX_RUNNING_CHECK_INTERVAL);
        }
    }

    /// Returns whether the device's queue has started.
    fn is_running(&mut self, device: u32) -> io::Result<bool> {
        let mut link = LinkMessage::default();
        link.header.index = device;
        self.send_packet(RouteNetlinkMessage::GetLink(link), NLM_F_REQUEST)?;
        match self.read_answer()? {
            // The state changes under the same lock as the queue, which this request takes too.
            Some(RouteNetlinkMessage::NewLink(link)) => {
                let up = LinkAttribute::OperState(State::Up);
                Ok(link.attributes.contains(&up))
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Adds the Ethernet address of a neighbour permanently: no packet to it waits for ARP, and no
    /// answer to ARP changes it.
    pub(crate) fn add_neighbour(
        &mut self,
        device: u32,
        address: Ipv4Addr,
        mac: MacAddress,
    ) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = device;
        message.header.state = NeighbourState::Permanent;
        message.header.kind = RouteType::Unicast;
        message.attributes = vec![
            NeighbourAttribute::Destination(NeighbourAddress::Inet(address)),
            NeighbourAttribute::LinkLayerAddress(mac.to_vec()),
        ];
        self.send_request(
            RouteNetlinkMessage::NewNeighbour(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Adds an address with a prefix of 32 bits to a device.
    pub(crate) fn add_address(&mut self, device: u32, address: Ipv4Addr) -> io::Result<()> {
        let mut message = AddressMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.prefix_len = 32;
        message.header.scope = AddressScope::Universe;
        message.header.index = device;
        message.attributes = vec![
            AddressAttribute::Local(address.into()),
            AddressAttribute::Address(address.into()),
        ];
        self.send_request(
            RouteNetlinkMessage::NewAddress(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Adds or replaces the route to a destination.
    ///
    /// The kernel removes a dead instance's device with a delay. By then a new instance may have
    /// its address, so an older route may exist.
    pub(crate) fn add_route(&mut self, route: &Ipv4Route) -> io::Result<()> {
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.header.scope = if route.next_hop.is_some() {
            RouteScope::Universe
        } else {
            RouteScope::Link
        };
        message.header.destination_prefix_length =
            route.destination.map_or(0, |(_, length)| length);
        let to = route
            .destination
            .map(|(to, _)| RouteAttribute::Destination(RouteAddress::Inet(to)));
        let via = route
            .next_hop
            .map(|via| RouteAttribute::Gateway(RouteAddress::Inet(via)));
        let source = route
            .source
            .map(|source| RouteAttribute::PrefSource(RouteAddress::Inet(source)));
        message.attributes = [to, via, source, Some(RouteAttribute::Oif(route.device))]
            .into_iter()
            .flatten()
            .collect();
        self.send_request(
            RouteNetlinkMessage::NewRoute(message),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Makes an address local to the namespace without adding it to a device. Adding it again has
    /// no effect.
    pub(crate) fn add_local_address(&mut self, address: Ipv4Addr) -> io::Result<()> {
        self.add_local_network(address, 32)
    }

    /// Makes all addresses of a network local, given by its prefix length.
    pub(crate) fn add_local_network(&mut self, network: Ipv4Addr, length: u8) -> io::Result<()> {
        self.send_request(
            RouteNetlinkMessage::NewRoute(local_route(network.into(), length)),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Does the same for an IPv6 address. `lo` must have IPv6.
    pub(crate) fn add_local_address_v6(&mut self, address: Ipv6Addr) -> io::Result<()> {
        self.send_request(
            RouteNetlinkMessage::NewRoute(local_route(address.into(), 128)),
            NLM_F_CREATE | NLM_F_REPLACE,
        )
    }

    /// Removes a local address.
    pub(crate) fn remove_local_address(&mut self, address: Ipv4Addr) -> io::Result<()> {
        self.send_request(
            RouteNetlinkMessage::DelRoute(local_route(address.into(), 32)),
            0,
        )
    }

    /// Creates a veth pair. The near end is up.
    pub(crate) fn create_veth_pair(&mut self, pair: &VethPair<'_>) -> io::Result<()> {
        let mut far = LinkMessage::default();
        far.header.index = pair.far_index;
        far.attributes = vec![
            LinkAttribute::IfName(pair.far.to_owned()),
            LinkAttribute::NetNsFd(pair.far_namespace.as_raw_fd()),
            LinkAttribute::Address(pair.macs[1].to_vec()),
        ];
        let mut near = LinkMessage::default();
        near.header.flags = LinkFlags::Up;
        near.header.change_mask = LinkFlags::Up;
        near.attributes = vec![
            LinkAttribute::IfName(pair.near.to_owned()),
            LinkAttribute::Address(pair.macs[0].to_vec()),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(far))),
            ]),
        ];
        self.send_request(
            RouteNetlinkMessage::NewLink(near),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Returns the kind of the route that a packet to an address takes; `None` without a route.
    pub(crate) fn route_kind(&mut self, address: IpAddr) -> io::Result<Option<RouteType>> {
        let mut message = RouteMessage::default();
        (
            message.header.address_family,
            message.header.destination_prefix_length,
        ) = match address {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        message.attributes = vec![RouteAttribute::Destination(address.into())];
        self.send_packet(RouteNetlinkMessage::GetRoute(message), NLM_F_REQUEST)?;
        match self.read_answer() {
            Ok(Some(RouteNetlinkMessage::NewRoute(route))) => Ok(Some(route.header.kind)),
            Ok(_) => Err(io::ErrorKind::InvalidData.into()),
            Err(error) if NO_ROUTE_ERRORS.contains(&error.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends a request and waits until the kernel has executed or rejected it.
    pub(crate) fn send_request(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<()> {
        self.send_packet(message, NLM_F_REQUEST | NLM_F_ACK | flags)?;
        self.read_answer().map(drop)
    }

    fn send_packet(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        let mut packet = NetlinkMessage::from(message);
        self.sequence += 1;
        packet.header.sequence_number = self.sequence;
        packet.header.flags = flags;
        packet.finalize();
        let mut buffer = vec![0; packet.buffer_len()];
        packet.serialize(&mut buffer);
        self.socket.send(&buffer, 0).map(drop)
    }

    /// Returns the kernel's answer to the last request; `None` if it is an acknowledgement.
    fn read_answer(&mut self) -> io::Result<Option<RouteNetlinkMessage>> {
        loop {
            let (answer, _) = self.socket.recv_from_full()?;
            let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)
                .map_err(io::Error::other)?;
            // Others answer an earlier, abandoned request.
            if answer.header.sequence_number != self.sequence {
                continue;
            }
            match answer.payload {
                NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                NetlinkPayload::Error(_) => return Ok(None),
                NetlinkPayload::InnerMessage(message) => return Ok(Some(message)),
                _ => {}
            }
        }
    }
}

/// Builds `ip route … local ADDRESS/LENGTH dev lo`; see ip-route(8).
fn local_route(address: IpAddr, length: u8) -> RouteMessage {
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
    message.attributes = vec![
        RouteAttribute::Destination(to),
        RouteAttribute::Oif(LOOPBACK_INDEX),
    ];
    message
}
