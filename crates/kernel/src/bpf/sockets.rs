//! Where parties' sockets live: a network namespace with nothing in it but a loopback device.
//!
//! SK_MSG runs for TCP only, so each party has a TCP connection whose other end the node keeps. Whoever has a socket can
//! disconnect it and connect it elsewhere (connect(2), `AF_UNSPEC`): from this namespace there is no elsewhere.
#![expect(unsafe_code, reason = "unshare can break assumptions about shared descriptors")]

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::netlink::{LOOPBACK, Rtnl};

/// See the module.
#[derive(Debug)]
pub(super) struct Yard {
    namespace: OwnedFd,
}

impl Yard {
    pub(super) fn create() -> io::Result<Self> {
        Ok(Self { namespace: on_a_thread(build)? })
    }

    /// A connected pair: the party's end, and the node's.
    pub(super) fn pair(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        let namespace = self.namespace.as_fd().try_clone_to_owned()?;
        on_a_thread(move || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?;
            connected()
        })
    }
}

/// A thread that changes its namespace is of no use for anything else afterwards.
fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    let worker = thread::Builder::new().name("sockets".into()).spawn(work)?;
    worker.join().map_err(|_| io::Error::other("the thread that makes sockets panicked"))?
}

fn build() -> io::Result<OwnedFd> {
    // SAFETY: unsharing the network namespace of a thread that ends here breaks no assumption about shared files.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
    Rtnl::open()?.up(LOOPBACK)?;
    Ok(File::open("/proc/thread-self/ns/net")?.into())
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
