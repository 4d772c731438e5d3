//! Where the node answers for destinations outside: the switch itself or, where a forwarder moves the packets, a station on it.
//!
//! Nothing leads out of there. What an instance sends to a declared destination ends at a socket of the node's, which sees
//! who sent it (strict reverse-path filtering, or the forwarder's row, proves the source) and whom it was for: the kernel has
//! routes that make each such address one of the namespace's own (`ip route add local`, "AnyIP"). They go with the namespace.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nearpath_types::Eip;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use crate::bpf::Forwarder;
use crate::namespace;
use crate::netlink::Rtnl;
use crate::station::Station;
use crate::switch::Switch;

/// Connections that may wait to be accepted at one port. The kernel's own limit, `net.core.somaxconn`, is 4096.
const BACKLOG: i32 = 1_024;

/// See the module.
pub struct Doorway {
    namespace: OwnedFd,
    routes: Mutex<Rtnl>,
    apart: Option<Apart>,
}

/// A doorway that is not the switch.
struct Apart {
    station: Eip,
    forwarder: Arc<Forwarder>,
}

impl Doorway {
    /// In the switch, where instances' packets end.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`.
    pub fn in_switch(switch: &Switch) -> io::Result<Self> {
        Self::open(switch, None)
    }

    /// In a station of its own, whose packets `forwarder`, which is attached to it, carries to instances that may have them.
    ///
    /// # Errors
    /// As [`in_switch`](Self::in_switch).
    pub fn in_station(station: &Station, forwarder: Arc<Forwarder>) -> io::Result<Self> {
        Self::open(station, Some(Apart { station: station.eip(), forwarder }))
    }

    fn open(namespace: impl AsFd, apart: Option<Apart>) -> io::Result<Self> {
        let routes = Mutex::new(namespace::within(&namespace, Rtnl::open)?);
        Ok(Self { namespace: namespace.as_fd().try_clone_to_owned()?, routes, apart })
    }

    /// Takes what is for `address`, from now on. It must be nobody's in the node's network.
    ///
    /// # Errors
    /// Without `CAP_NET_ADMIN`.
    pub fn answer_for(&self, address: Ipv4Addr) -> io::Result<()> {
        self.routes().answer_for(address)?;
        self.introduce(address);
        Ok(())
    }

    /// Takes what is for any address of a network, by the length of its prefix, for good. Behind a forwarder each address is still
    /// to be introduced ([`introduce`](Self::introduce)).
    ///
    /// # Errors
    /// As [`answer_for`](Self::answer_for).
    pub fn answer_for_all(&self, network: Ipv4Addr, length: u8) -> io::Result<()> {
        self.routes().answer_for_all(network, length)
    }

    /// Has a forwarder know that an address of such a network is here.
    pub fn introduce(&self, address: Ipv4Addr) {
        if let Some(Apart { station, forwarder }) = &self.apart {
            forwarder.also(Eip(address), *station);
        }
    }

    /// Takes that back, as far as it was there. Nobody may be let to it any more.
    pub fn answer_no_more(&self, address: Ipv4Addr) {
        if let Some(Apart { forwarder, .. }) = &self.apart {
            forwarder.no_longer(Eip(address));
        }
        if let Err(error) = self.routes().answer_no_more(address) {
            tracing::debug!(%address, %error, "no such route");
        }
    }

    /// Lets an instance's packets to `address` through. In the switch nothing holds them back.
    ///
    /// # Errors
    /// When the forwarder's table is full.
    pub fn let_through(&self, eip: Eip, address: Ipv4Addr) -> io::Result<()> {
        self.apart.as_ref().map_or(Ok(()), |apart| apart.forwarder.allow(eip, Eip(address)))
    }

    /// Takes that back.
    pub fn hold_back(&self, eip: Eip, address: Ipv4Addr) {
        if let Some(apart) = &self.apart {
            apart.forwarder.forbid(eip, Eip(address));
        }
    }

    /// A listener, not blocking, for every address that is answered for. One that is bound to an address of its own at the same port, as the
    /// gateway's, keeps what is for that. What it accepts has `TCP_NODELAY` already: a system call less for each connection.
    ///
    /// # Errors
    /// Without `CAP_SYS_ADMIN`, or when there are no descriptors left.
    pub fn listen(&self, port: u16) -> io::Result<TcpListener> {
        namespace::within(&self.namespace, || listener(port))
    }

    fn routes(&self) -> std::sync::MutexGuard<'_, Rtnl> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner) // a request that was given up is passed over
    }
}

fn listener(port: u16) -> io::Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    bind(&socket, &std::net::SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

impl fmt::Debug for Doorway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorway").field("apart", &self.apart.is_some()).finish_non_exhaustive()
    }
}
