//! Network namespaces without a name, and work inside them.
#![expect(unsafe_code, reason = "unshare can break assumptions about shared descriptors")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// The calling thread joins a network namespace for good: sockets that it opens from now on are there, those that it has
/// stay where they are.
///
/// # Errors
/// Without `CAP_SYS_ADMIN`.
pub fn enter(namespace: impl AsFd) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))?)
}

/// Does something in a network namespace: on a thread of its own, which is of no use for anything else afterwards. Sockets
/// that it opens and processes that it starts stay in that namespace.
///
/// # Errors
/// Without `CAP_SYS_ADMIN`, and those of `work`.
pub fn within<T: Send>(namespace: impl AsFd, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let namespace = namespace.as_fd();
    on_a_thread(|| {
        enter(namespace)?;
        work()
    })
}

/// Makes a namespace, in which `work` is done first. It ends with its last handle, process and socket.
///
/// # Errors
/// Without `CAP_SYS_ADMIN`, and those of `work`.
pub fn create(work: impl FnOnce() -> io::Result<()> + Send) -> io::Result<OwnedFd> {
    on_a_thread(|| {
        // SAFETY: unsharing the network namespace of a thread that ends here breaks no assumption about shared files.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
        work()?;
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    })
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new().name("namespace".into()).spawn_scoped(scope, work)?;
        worker.join().map_err(|_| io::Error::other("the thread in another network namespace panicked"))?
    })
}
