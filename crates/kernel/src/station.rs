//! A station: a network namespace whose only way out is a veth pair into a switch.
//!
//! Instances build theirs from inside ([`crate::sandbox`]); this is one made from outside, for whatever else is to hang on a
//! switch, such as a gateway that does not live in it. The Ethernet addresses of both ends are made of the eIP, so that the
//! [`crate::bpf::Forwarder`] knows them without asking.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nearpath_types::Eip;

use crate::namespace;
use crate::netlink::{LOOPBACK, Mac, Route, Rtnl, Veth};
use crate::switch::write_settings;

/// The far end's index and name, as in an instance.
const ETH0: (u32, &str) = (2, "eth0");
/// As in an instance: nothing here speaks IPv6. A station is no way to anywhere, whatever the host's own settings are, which
/// new namespaces inherit.
const SETTINGS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "0"),
    ("ipv4/conf/all/arp_announce", "2"), // ask as the station itself, also when a packet says it is from an address that this answers for
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
];

/// What a station asks for when it sends, where a forwarder answers for everybody: link-local (RFC 3927), nobody's address.
pub const NEXT_HOP: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);

/// A handle to the station's namespace, which ends with its last handle, process and socket.
#[derive(Debug)]
pub struct Station {
    namespace: OwnedFd,
    eip: Eip,
    device: String,
}

impl Station {
    /// Makes the namespace and its pair. `device` is the near end's name, at most 15 octets; `next_hop` is the address that
    /// the station asks for when it sends to any other, which the switch or a forwarder has to answer for.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`, or when the switch has a device of that name.
    pub fn create(switch: impl AsFd, eip: Eip, device: &str, next_hop: Ipv4Addr) -> io::Result<Self> {
        let mut near = namespace::within(switch, Rtnl::open)?;
        let namespace = namespace::create(|| connect(&mut near, eip, device, next_hop))?;
        Ok(Self { namespace, eip, device: device.to_owned() })
    }

    /// Its address.
    pub fn eip(&self) -> Eip {
        self.eip
    }

    /// Lets the calling thread join it: sockets that it opens from now on are there.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`.
    pub fn enter(&self) -> io::Result<()> {
        namespace::enter(self)
    }

    /// The name of the switch's end of its pair.
    pub fn device(&self) -> &str {
        &self.device
    }
}

impl AsFd for Station {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}

/// Sets up the calling thread's new namespace, and the other end through `switch`.
fn connect(switch: &mut Rtnl, eip: Eip, near: &str, next_hop: Ipv4Addr) -> io::Result<()> {
    write_settings(SETTINGS)?;
    let here = File::open("/proc/thread-self/ns/net")?;
    let (far_index, far) = ETH0;
    switch.veth(&Veth { near, far, far_index, far_namespace: here.as_fd(), macs: macs(eip) })?;
    let device = switch.index(near)?;
    switch.route(&Route { to: Some((eip.0, 32)), via: None, device, source: None })?;
    let mut inside = Rtnl::open()?;
    inside.up(LOOPBACK)?;
    inside.address(far_index, eip.0)?;
    inside.up(far_index)?;
    inside.route(&Route { to: Some((next_hop, 32)), via: None, device: far_index, source: Some(eip.0) })?;
    inside.route(&Route { to: None, via: Some(next_hop), device: far_index, source: Some(eip.0) })
}

/// The Ethernet addresses of the switch's end and the station's own: locally administered, the eIP in the last four octets.
pub(crate) fn macs(eip: Eip) -> [Mac; 2] {
    let [a, b, c, d] = eip.0.octets();
    [[0x02, 0x4e, a, b, c, d], [0x06, 0x4e, a, b, c, d]]
}
