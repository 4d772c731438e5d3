//! Where parties' sockets live: a network namespace with nothing in it but a loopback device.
//!
//! SK_MSG runs for TCP only, so each party has a TCP connection whose other end the node keeps. Whoever has a socket can
//! disconnect it and connect it elsewhere (connect(2), `AF_UNSPEC`): from this namespace there is no elsewhere.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use crate::namespace;
use crate::netlink::{LOOPBACK, Rtnl};

/// See the module.
#[derive(Debug)]
pub(super) struct Yard {
    namespace: OwnedFd,
}

impl Yard {
    pub(super) fn create() -> io::Result<Self> {
        Ok(Self { namespace: namespace::create(|| Rtnl::open()?.up(LOOPBACK))? })
    }

    /// A connected pair: the party's end, and the node's.
    pub(super) fn pair(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        namespace::within(&self.namespace, connected)
    }
}

fn connected() -> io::Result<(OwnedFd, OwnedFd)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ours = TcpStream::connect(listener.local_addr()?)?;
    loop {
        // Another party of the domain lives in this namespace too and may have knocked first.
        let (theirs, from) = listener.accept()?;
        if from == ours.local_addr()? {
            ours.set_nonblocking(true)?;
            theirs.set_nodelay(true)?;
            ours.set_nodelay(true)?;
            return Ok((theirs.into(), ours.into()));
        }
    }
}
