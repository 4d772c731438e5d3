//! Unnamed network namespaces, and running code inside them.
#![expect(
    unsafe_code,
    reason = "unshare can break assumptions about shared descriptors"
)]

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::net::{SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use rustix::net::{
    AddressFamily, Protocol, SocketFlags, SocketType, bind, ipproto, listen, socket_with, sockopt,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

/// Moves the calling thread into a network namespace permanently. Sockets that it opens afterwards
/// belong there; open ones stay. Called before the thread's first [`open_tcp_socket_in`], which
/// remembers its namespace.
///
/// # Errors
/// Fails without `CAP_SYS_ADMIN`.
pub fn enter_netns(namespace: impl AsFd) -> io::Result<()> {
    Ok(move_into_link_name_space(
        namespace.as_fd(),
        Some(LinkNameSpaceType::Network),
    )?)
}

/// Runs `work` in a network namespace, on a thread that ends afterwards. Sockets that it opens and
/// processes that it starts stay there.
///
/// # Errors
/// Fails without `CAP_SYS_ADMIN`, or when `work` fails.
pub fn run_in_netns<T: Send>(
    namespace: impl AsFd,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    let namespace = namespace.as_fd();
    run_on_thread(|| {
        enter_netns(namespace)?;
        work()
    })
}

/// Maximum number of connections that wait for accept on one port. The kernel's default limit
/// `net.core.somaxconn` is 4096.
const MAX_BACKLOG: i32 = 1_024;

/// Attempts to return to a thread's own namespace while the kernel has no memory for it.
const MAX_RETURN_TRIES: u32 = 100;

thread_local! {
    /// Network namespace of the calling thread, once it could be opened. A thread that changes its
    /// namespace for good does so before.
    static OWN_NETNS: OnceCell<File> = const { OnceCell::new() };
}

/// Creates a non-blocking TCP socket in a network namespace, without another thread: two system
/// calls more than a socket of the own namespace. The calling thread no longer calls
/// [`enter_netns`].
///
/// # Errors
/// Fails without `CAP_SYS_ADMIN`, or when the kernel has no memory.
pub fn open_tcp_socket_in(namespace: impl AsFd, is_ipv6: bool) -> io::Result<OwnedFd> {
    let family = match is_ipv6 {
        true => AddressFamily::INET6,
        false => AddressFamily::INET,
    };
    open_socket_in(namespace, family, SocketType::STREAM, ipproto::TCP)
}

/// Creates a non-blocking UDP socket of IPv4 in a network namespace, like [`open_tcp_socket_in`].
pub(crate) fn open_udp_socket_in(namespace: impl AsFd) -> io::Result<OwnedFd> {
    let family = AddressFamily::INET;
    open_socket_in(namespace, family, SocketType::DGRAM, ipproto::UDP)
}

fn open_socket_in(
    namespace: impl AsFd,
    family: AddressFamily,
    kind: SocketType,
    protocol: Protocol,
) -> io::Result<OwnedFd> {
    OWN_NETNS.with(|own| {
        if own.get().is_none() {
            let _ = own.set(File::open("/proc/thread-self/ns/net")?); // was empty
        }
        let own = own.get().expect("it was set above");
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        enter_netns(namespace)?;
        let socket = socket_with(family, kind, flags, Some(protocol));
        return_to_netns(own);
        Ok(socket?)
    })
}

/// Opens a non-blocking listener in the calling thread's namespace.
pub(crate) fn bind_listener(at: SocketAddrV4) -> io::Result<TcpListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // The gateway's listeners may share the port; their own address is more specific.
    sockopt::set_socket_reuseport(&socket, true)?;
    sockopt::set_tcp_nodelay(&socket, true)?;
    bind(&socket, &at)?;
    listen(&socket, MAX_BACKLOG)?;
    Ok(socket.into())
}

/// Moves the calling thread back into its own network namespace, or ends the process.
fn return_to_netns(own: &File) {
    for _ in 0..MAX_RETURN_TRIES {
        if enter_netns(own).is_ok() {
            return;
        }
        // The way in needed the same privilege, so the kernel lacked memory (`create_nsproxy`).
        thread::sleep(Duration::from_millis(1));
    }
    // Every later socket of this thread would belong to a tenant.
    std::process::abort();
}

/// Creates a network namespace and runs `work` in it first. The namespace ends with its last
/// handle, process and socket.
///
/// # Errors
/// Fails without `CAP_SYS_ADMIN`, or when `work` fails.
pub fn create_netns(work: impl FnOnce() -> io::Result<()> + Send) -> io::Result<OwnedFd> {
    run_on_thread(|| {
        // SAFETY: unsharing the network namespace of a thread that ends here breaks no assumption
        // about shared files.
        unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
        work()?;
        // `/proc/self` would name the namespace of the process's first thread.
        Ok(File::open("/proc/thread-self/ns/net")?.into())
    })
}

// A thread cannot be trusted to return to its old namespace: without privileges setns() would fail.
fn run_on_thread<T: Send>(work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    thread::scope(|scope| {
        let worker = thread::Builder::new()
            .name("namespace".into())
            .spawn_scoped(scope, work)?;
        worker
            .join()
            .map_err(|_| io::Error::other("the thread in another network namespace panicked"))?
    })
}
