//! The switch: the network namespace that holds the node's ends of all veth pairs.
//!
//! It forwards nothing and has no way out, so an instance reaches the gateway's listener here and nothing else. Strict
//! reverse-path filtering (RFC 3704) drops a packet whose source is not the eIP routed to the veth it came in by, which
//! makes the eIP a proof of who calls. The namespace has no name: it lasts as long as the process that holds it.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::namespace;
use crate::netlink::{LOOPBACK, Rtnl};

/// What is written to `/proc/sys/net` there, and why: see the kernel's `Documentation/networking/ip-sysctl.rst`.
const SETTINGS: &[(&str, &str)] = &[
    ("ipv4/ip_forward", "0"),                // instances reach the gateway, never one another
    ("ipv4/conf/all/rp_filter", "1"),        // strict, for every device: an eIP cannot be forged
    ("ipv4/conf/default/rp_filter", "1"),    // the same for devices that come later
    ("ipv4/conf/all/accept_redirects", "0"), // no instance teaches the switch a route
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/conf/default/arp_announce", "2"),
    ("ipv6/conf/all/forwarding", "0"),
    ("ipv6/conf/all/disable_ipv6", "1"), // nothing here speaks IPv6; link-local addresses would be a side entrance
    ("ipv6/conf/default/disable_ipv6", "1"),
];

/// A handle to the switch's network namespace, which ends when the last handle and the last socket in it are gone.
#[derive(Debug)]
pub struct Switch {
    namespace: OwnedFd,
    gateway: Ipv4Addr,
}

impl Switch {
    /// Makes the namespace; `gateway` is the address under which instances find the gateway.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN` and `CAP_NET_ADMIN` in the user namespace, or when network namespaces are forbidden.
    pub fn create(gateway: Ipv4Addr) -> io::Result<Switch> {
        Ok(Switch { namespace: namespace::create(|| set_up(gateway))?, gateway })
    }

    /// Lets the calling thread join the switch: sockets that it opens from now on are there.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`.
    pub fn enter(&self) -> io::Result<()> {
        namespace::enter(self)
    }

    /// The address under which instances find the gateway.
    pub fn gateway(&self) -> Ipv4Addr {
        self.gateway
    }
}

impl AsFd for Switch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}

/// Makes the calling thread's new namespace the switch.
fn set_up(gateway: Ipv4Addr) -> io::Result<()> {
    write_settings(SETTINGS)?;
    let mut rtnl = Rtnl::open()?;
    rtnl.up(LOOPBACK)?;
    rtnl.address(LOOPBACK, gateway)
}

/// Writes network settings of the calling thread's namespace. One that this kernel does not have is passed over: it was
/// built without IPv6.
pub(crate) fn write_settings(settings: &[(&str, &str)]) -> io::Result<()> {
    for (name, value) in settings {
        match fs::write(format!("/proc/sys/net/{name}"), value) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io::Error::new(error.kind(), format!("/proc/sys/net/{name}: {error}"))),
            Ok(()) => {}
        }
    }
    Ok(())
}
