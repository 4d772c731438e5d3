//! Listening for connections to destinations outside: in the hub or, with a forwarder, in an
//! attached namespace.
//!
//! The namespace has no connection to the outside. Each declared destination is a local address
//! there (`ip route add local`, "AnyIP"). An instance's connection ends at a socket of the node.
//! That socket shows the caller and the wanted destination. Strict reverse-path filtering, or the
//! forwarder's route, proves the caller's address.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nearpath_types::Eip;

use crate::attached_netns::AttachedNetns;
use crate::bpf::Forwarder;
use crate::hub_netns::HubNetns;
use crate::namespace;
use crate::netlink::RtnlSocket;

/// Local addresses and listeners for destinations outside. The routes end with the namespace.
pub struct EgressListener {
    namespace: OwnedFd,
    routes: Mutex<RtnlSocket>,
    forwarded: Option<ForwardedNetns>,
}

/// The attached namespace that replaces the hub where a forwarder moves the packets.
struct ForwardedNetns {
    eip: Eip,
    forwarder: Arc<Forwarder>,
}

impl EgressListener {
    /// Listens in the hub.
    ///
    /// # Errors
    /// Fails without `CAP_SYS_ADMIN`.
    pub fn in_hub(hub: &HubNetns) -> io::Result<Self> {
        Self::open(hub, None)
    }

    /// Listens in an attached namespace. `forwarder`, which is attached to it, delivers the packets
    /// of permitted instances.
    ///
    /// # Errors
    /// Fails like [`in_hub`](Self::in_hub).
    pub fn in_attached_netns(netns: &AttachedNetns, forwarder: Arc<Forwarder>) -> io::Result<Self> {
        Self::open(
            netns,
            Some(ForwardedNetns {
                eip: netns.eip(),
                forwarder,
            }),
        )
    }

    fn open(namespace: impl AsFd, forwarded: Option<ForwardedNetns>) -> io::Result<Self> {
        let routes = Mutex::new(namespace::run_in_netns(&namespace, RtnlSocket::open)?);
        Ok(Self {
            namespace: namespace.as_fd().try_clone_to_owned()?,
            routes,
            forwarded,
        })
    }

    /// Accepts connections to `address`, which must not be used in the node's network.
    ///
    /// # Errors
    /// Fails without `CAP_NET_ADMIN`.
    pub fn add_address(&self, address: Ipv4Addr) -> io::Result<()> {
        self.routes().add_local_address(address)?;
        self.add_alias(address);
        Ok(())
    }

    /// Accepts connections to every address of a network, given by its prefix length, permanently.
    ///
    /// With a forwarder each address also needs [`add_alias`](Self::add_alias).
    ///
    /// # Errors
    /// Fails like [`add_address`](Self::add_address).
    pub fn add_network(&self, network: Ipv4Addr, length: u8) -> io::Result<()> {
        self.routes().add_local_network(network, length)
    }

    /// Makes the forwarder deliver packets for an address to this namespace.
    pub fn add_alias(&self, address: Ipv4Addr) {
        if let Some(ForwardedNetns { eip, forwarder }) = &self.forwarded {
            forwarder.add_alias(Eip(address), *eip);
        }
    }

    /// Stops accepting connections to `address`. No instance may still have access to it.
    pub fn remove_address(&self, address: Ipv4Addr) {
        if let Some(ForwardedNetns { forwarder, .. }) = &self.forwarded {
            forwarder.remove_alias(Eip(address));
        }
        if let Err(error) = self.routes().remove_local_address(address) {
            tracing::debug!(%address, %error, "no such route");
        }
    }

    /// Permits packets of an instance to `address`. In the hub nothing restricts them.
    ///
    /// # Errors
    /// Fails when the forwarder's table is full.
    pub fn allow_instance(&self, eip: Eip, address: Ipv4Addr) -> io::Result<()> {
        self.forwarded.as_ref().map_or(Ok(()), |forwarded| {
            forwarded.forwarder.allow_pair(eip, Eip(address))
        })
    }

    /// Revokes that permission.
    pub fn forbid_instance(&self, eip: Eip, address: Ipv4Addr) {
        if let Some(forwarded) = &self.forwarded {
            forwarded.forwarder.forbid_pair(eip, Eip(address));
        }
    }

    /// Opens a non-blocking listener for all accepted addresses.
    ///
    /// A listener that is bound to one address at the same port, like the gateway's, keeps the
    /// connections to it. Accepted sockets inherit `TCP_NODELAY`, which saves a system call per
    /// connection.
    ///
    /// # Errors
    /// Fails without `CAP_SYS_ADMIN`, or without free descriptors.
    pub fn listen_on(&self, port: u16) -> io::Result<TcpListener> {
        let at = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port);
        namespace::run_in_netns(&self.namespace, || namespace::bind_listener(at))
    }

    fn routes(&self) -> std::sync::MutexGuard<'_, RtnlSocket> {
        // an abandoned request leaves no broken state
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for EgressListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EgressListener")
            .field("forwarded", &self.forwarded.is_some())
            .finish_non_exhaustive()
    }
}
