//! The hub: the network namespace with the node's ends of all veth pairs.
//!
//! The hub has no uplink, and forwards nothing unless the virtual switch decides on every connection
//! ([`HubNetns::forward_packets`]). So an instance reaches only the gateway's listener.
//! Strict reverse-path filtering (RFC 3704) drops packets whose source is not the eIP routed to
//! their veth device. The eIP therefore proves who calls. The namespace has no name and ends with
//! the process that holds it.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::sockopt::{set_socket_recv_buffer_size_force, set_socket_reuseaddr};
use rustix::net::{bind, connect};

use crate::namespace;
use crate::netlink::{LOOPBACK_INDEX, RtnlSocket};
use crate::sockets::request_details;

/// Settings below `/proc/sys/net`; see the kernel's `Documentation/networking/ip-sysctl.rst`.
const HUB_SYSCTLS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "0"), // instances reach the gateway, never each other
    ("ipv4/conf/all/rp_filter", "1"), // strict, for every device: no instance can forge an eIP
    ("ipv4/conf/default/rp_filter", "1"), // the same for devices that are added later
    // both for every device: no instance can choose a route that the virtual switch has not seen
    ("ipv4/conf/all/accept_source_route", "0"),
    ("ipv4/conf/default/accept_source_route", "0"),
    ("ipv4/conf/all/accept_redirects", "0"), // no instance can change the hub's routes
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/conf/default/arp_announce", "2"),
    ("ipv6/conf/all/forwarding", "0"),
    // nothing here uses IPv6; link-local addresses would bypass the filter
    ("ipv6/conf/all/disable_ipv6", "1"),
    ("ipv6/conf/default/disable_ipv6", "1"),
];

/// Octets that the kernel keeps of datagrams until the node reads them; it doubles the number (`socket(7)`).
/// A small datagram takes about 800 octets, so a burst of 600 fits.
const DATAGRAM_BUFFER_BYTES: usize = 256 << 10;

/// Settings for packets between instances.
const FORWARDING_SYSCTLS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "1"),
    // instances have one route to all others, and need no better one
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
];

/// A handle to the hub. The namespace ends with its last handle and socket.
#[derive(Debug)]
pub struct HubNetns {
    namespace: OwnedFd,
    gateway: Ipv4Addr,
}

impl HubNetns {
    /// Creates the hub. `gateway` is the address at which instances find the gateway.
    ///
    /// # Errors
    /// Fails without `CAP_SYS_ADMIN` and `CAP_NET_ADMIN` in the user namespace, or when network
    /// namespaces are forbidden.
    pub fn create(gateway: Ipv4Addr) -> io::Result<HubNetns> {
        Ok(HubNetns {
            namespace: namespace::create_netns(|| set_up_hub(gateway))?,
            gateway,
        })
    }

    /// Moves the calling thread into the hub: sockets that it opens afterwards belong there.
    ///
    /// # Errors
    /// Fails without `CAP_SYS_ADMIN`.
    pub fn enter(&self) -> io::Result<()> {
        namespace::enter_netns(self)
    }

    /// Forwards packets between instances from now on. Only for a hub whose instances are behind a
    /// [`VirtualSwitch`](crate::bpf::VirtualSwitch), which permits each connection.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`.
    pub fn forward_packets(&self) -> io::Result<()> {
        namespace::run_in_netns(self, || write_sysctls(FORWARDING_SYSCTLS))
    }

    /// Makes the addresses of a network local, given by its prefix length: listeners get connections to
    /// them ("AnyIP").
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`.
    pub(crate) fn add_local_network(&self, network: Ipv4Addr, length: u8) -> io::Result<()> {
        namespace::run_in_netns(self, || {
            RtnlSocket::open()?.add_local_network(network, length)
        })
    }

    /// Opens a non-blocking listener at a free port of the gateway's address.
    ///
    /// # Errors
    /// Fails without `CAP_SYS_ADMIN`, or without free descriptors.
    pub(crate) fn open_listener(&self) -> io::Result<TcpListener> {
        let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
        namespace::run_in_netns(self, || namespace::bind_listener(at))
    }

    /// Opens a non-blocking TCP socket in the hub, from which instances are reached.
    ///
    /// # Errors
    /// Fails without `CAP_SYS_ADMIN`, or without free descriptors.
    pub fn open_tcp_socket(&self) -> io::Result<OwnedFd> {
        namespace::open_tcp_socket_in(self, false)
    }

    /// Opens a non-blocking UDP socket at a free port of the gateway's address, which receives datagrams with
    /// their destinations and the number of lost ones.
    ///
    /// # Errors
    /// Fails without `CAP_SYS_ADMIN`, or without free descriptors.
    pub(crate) fn open_datagram_socket(&self) -> io::Result<UdpSocket> {
        let socket = namespace::open_udp_socket_in(self)?;
        request_details(&socket)?;
        set_socket_recv_buffer_size_force(&socket, DATAGRAM_BUFFER_BYTES)?;
        // Only bound sockets can be in a map of BPF. Instances do not reach this address.
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0))?;
        Ok(socket.into())
    }

    /// Opens a non-blocking UDP socket between a local address and a peer. Without a local address the
    /// kernel chooses one. Several sockets may have the same local address.
    ///
    /// # Errors
    /// Fails without `CAP_SYS_ADMIN`, without free descriptors, or when the local address is not of the hub.
    pub fn open_flow_socket(
        &self,
        local: Option<SocketAddrV4>,
        peer: SocketAddrV4,
    ) -> io::Result<UdpSocket> {
        let socket = namespace::open_udp_socket_in(self)?;
        if let Some(local) = local {
            // The flows of several callers have the same virtual address.
            set_socket_reuseaddr(&socket, true)?;
            bind(&socket, &local)?;
        }
        connect(&socket, &peer)?;
        Ok(socket.into())
    }

    /// Returns the address at which instances find the gateway.
    pub fn gateway(&self) -> Ipv4Addr {
        self.gateway
    }
}

impl AsFd for HubNetns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}

/// Configures the calling thread's new namespace as the hub.
fn set_up_hub(gateway: Ipv4Addr) -> io::Result<()> {
    write_sysctls(HUB_SYSCTLS)?;
    let mut rtnl = RtnlSocket::open()?;
    rtnl.set_up(LOOPBACK_INDEX)?;
    rtnl.add_address(LOOPBACK_INDEX, gateway)
}

/// Writes settings of the calling thread's namespace. Missing ones are ignored: a kernel without
/// IPv6 lacks them.
pub(crate) fn write_sysctls(settings: &[(&str, &str)]) -> io::Result<()> {
    for (name, value) in settings {
        match fs::write(format!("/proc/sys/net/{name}"), value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(io::Error::new(
                    error.kind(),
                    format!("/proc/sys/net/{name}: {error}"),
                ));
            }
            Ok(()) => {}
        }
    }
    Ok(())
}
