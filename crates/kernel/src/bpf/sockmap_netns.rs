//! The network namespace of endpoints' sockets: it contains only a loopback device.
//!
//! SK_MSG runs for TCP only, so each endpoint has a TCP connection to the node. A program can
//! disconnect its socket and connect it elsewhere (connect(2), `AF_UNSPEC`). From this namespace
//! nothing else is reachable.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use crate::namespace;
use crate::netlink::{LOOPBACK_INDEX, RtnlSocket};

/// A handle to the namespace.
#[derive(Debug)]
pub(super) struct SockmapNetns {
    namespace: OwnedFd,
}

impl SockmapNetns {
    pub(super) fn create() -> io::Result<Self> {
        Ok(Self {
            namespace: namespace::create_netns(|| RtnlSocket::open()?.set_up(LOOPBACK_INDEX))?,
        })
    }

    /// Connects a pair of sockets: the endpoint's end, and the node's.
    pub(super) fn connect_pair(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        namespace::run_in_netns(&self.namespace, open_pair)
    }
}

fn open_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let node_end = TcpStream::connect(listener.local_addr()?)?;
    loop {
        // Another endpoint of the domain can connect to this listener first, from within the
        // namespace.
        let (endpoint_end, peer) = listener.accept()?;
        if peer == node_end.local_addr()? {
            node_end.set_nonblocking(true)?;
            endpoint_end.set_nodelay(true)?;
            node_end.set_nodelay(true)?;
            return Ok((endpoint_end.into(), node_end.into()));
        }
    }
}
