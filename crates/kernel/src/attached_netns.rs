//! Network namespaces attached to a hub by a veth pair, their only connection.
//!
//! Instances build their namespace from inside ([`crate::sandbox`]). An [`AttachedNetns`] is made
//! from outside, for other users of a hub. An example is a gateway with a namespace of its own. The
//! Ethernet addresses of both ends derive from the eIP, so [`crate::bpf::Forwarder`] computes them.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nearpath_types::Eip;

use crate::hub_netns::write_sysctls;
use crate::namespace;
use crate::netlink::{Ipv4Route, LOOPBACK_INDEX, MacAddress, RtnlSocket, VethPair};

/// Index and name of the inner end, the same as in an instance.
const ETH0: (u32, &str) = (2, "eth0");
/// Settings of the namespace. Nothing in it uses IPv6. Forwarding is off whatever the host's
/// settings are, which new namespaces inherit.
const ATTACHED_SYSCTLS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "0"),
    // A transparent socket's source is not this namespace's address
    ("ipv4/conf/all/arp_announce", "2"),
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
];

/// The next hop of an attached namespace where a forwarder answers ARP. Link-local (RFC 3927), so
/// no device has it.
pub const NEXT_HOP: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);

/// A handle to the namespace. The namespace ends with its last handle, process and socket.
#[derive(Debug)]
pub struct AttachedNetns {
    namespace: OwnedFd,
    eip: Eip,
    device: String,
}

impl AttachedNetns {
    /// Creates the namespace and its veth pair.
    ///
    /// `device` is the name of the hub's end, at most 15 octets. `next_hop` is the gateway of the
    /// default route; the hub or a forwarder must answer ARP for it.
    ///
    /// # Errors
    /// Fails without `CAP_SYS_ADMIN` and `CAP_NET_ADMIN`, or when the hub has a device of that
    /// name.
    pub fn create(hub: impl AsFd, eip: Eip, device: &str, next_hop: Ipv4Addr) -> io::Result<Self> {
        // Opened before the new namespace exists: a socket keeps the namespace of its creation.
        let mut near = namespace::run_in_netns(hub, RtnlSocket::open)?;
        let namespace = namespace::create_netns(|| build_netns(&mut near, eip, device, next_hop))?;
        Ok(Self {
            namespace,
            eip,
            device: device.to_owned(),
        })
    }

    /// Returns the eIP of the namespace.
    pub fn eip(&self) -> Eip {
        self.eip
    }

    /// Moves the calling thread into the namespace: sockets that it opens afterwards belong there.
    ///
    /// # Errors
    /// Fails without `CAP_SYS_ADMIN`.
    pub fn enter(&self) -> io::Result<()> {
        namespace::enter_netns(self)
    }

    /// Returns the name of the hub's end of the pair.
    pub fn device(&self) -> &str {
        &self.device
    }
}

impl AsFd for AttachedNetns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}

/// Builds the calling thread's new namespace, and the other end of its pair through `hub`.
fn build_netns(hub: &mut RtnlSocket, eip: Eip, near: &str, next_hop: Ipv4Addr) -> io::Result<()> {
    write_sysctls(ATTACHED_SYSCTLS)?;
    let here = File::open("/proc/thread-self/ns/net")?;
    let (far_index, far) = ETH0;
    let [near_mac, far_mac] = veth_macs(eip);
    // Made from the hub's side in one request: no half of a pair ever appears in the host.
    hub.create_veth_pair(&VethPair {
        near,
        far,
        far_index,
        far_namespace: here.as_fd(),
        macs: [near_mac, far_mac],
    })?;
    let device = hub.device_index(near)?;
    // The route also makes strict reverse-path filtering in the hub accept this source.
    hub.add_route(&Ipv4Route {
        destination: Some((eip.0, 32)),
        next_hop: None,
        device,
        source: None,
    })?;
    let mut inside = RtnlSocket::open()?;
    inside.set_up(LOOPBACK_INDEX)?;
    inside.add_address(far_index, eip.0)?;
    inside.set_up(far_index)?;
    hub.add_neighbour(device, eip.0, far_mac)?;
    inside.add_neighbour(far_index, next_hop, near_mac)?;
    hub.wait_running(device);
    inside.add_route(&Ipv4Route {
        destination: Some((next_hop, 32)),
        next_hop: None,
        device: far_index,
        source: Some(eip.0),
    })?;
    inside.add_route(&Ipv4Route {
        destination: None,
        next_hop: Some(next_hop),
        device: far_index,
        source: Some(eip.0),
    })
}

/// Returns the Ethernet addresses of the hub's end and the inner end. Both are locally administered
/// and have the eIP in the last four octets.
// 0x02 marks an address as locally administered, 0x4e is `N`; 0x06 sets the two ends apart.
pub(crate) fn veth_macs(eip: Eip) -> [MacAddress; 2] {
    let [a, b, c, d] = eip.0.octets();
    [[0x02, 0x4e, a, b, c, d], [0x06, 0x4e, a, b, c, d]]
}
