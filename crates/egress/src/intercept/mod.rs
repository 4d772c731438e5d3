//! Replaces a function's own socket with a warm one at connect().
//!
//! An instance with a plain TCP destination runs under a seccomp filter that reports connect()
//! ([`nearpath_kernel::seccomp::listener`]). A thread per instance, the `supervisor`, answers. It
//! installs a warm socket under the caller's descriptor number and returns 0: no hop and no copy
//! remain. It does so only for such a destination, an unused socket, and a [`WarmSource`] that has
//! one or opens one within milliseconds. In any doubt the kernel continues the call. The egress
//! proxy (`crate::proxy`) then carries the connection and checks the policy with the kernel's own
//! copy of the address. So nothing here enforces a policy (ADR 31), and only a near destination is
//! waited for (ADR 78).
//!
//! A socket that was handed over does not return. [`HandedSockets`] learns from the kernel when it
//! is closed, and frees its slot below the limit.

mod decision;
mod fd_aliases;
mod handed_sockets;
mod reports;
mod supervisor;
mod warm_socket;
mod warm_source;

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;

pub use decision::{PassThroughReason, SocketFamily};
pub use handed_sockets::HandedSockets;
pub use reports::supervise_connects;
#[doc(hidden)]
pub use reports::supervise_without_alias_search;
pub use warm_socket::WarmSocket;
pub(crate) use warm_source::PoolWarmSource;
#[doc(hidden)]
pub use warm_source::pool_warm_source;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use nearpath_connpool::counters::DestinationCounters;
use nearpath_connpool::destination::EgressDestination;
use nearpath_connpool::ready_slot::ReadySlot;
use nearpath_connpool::state::SocketId;

/// A source of warm sockets. No method waits, except for [`connect_near`](Self::connect_near).
pub trait WarmSource {
    /// Takes an unused, connected and healthy socket of the requested family, which the program
    /// sees in every address. If there is none, the egress proxy carries the connection.
    fn take_warm(&self, to: &Rc<EgressDestination>, family: SocketFamily) -> Option<WarmSocket>;

    /// Opens such a socket if the destination answers within some milliseconds. The function's call
    /// waits for it.
    fn connect_near<'a>(
        &'a self,
        to: &'a Rc<EgressDestination>,
        family: SocketFamily,
    ) -> Pin<Box<dyn Future<Output = Option<WarmSocket>> + 'a>> {
        let _ = (to, family);
        Box::pin(std::future::ready(None))
    }

    /// Returns the slot with ready IPv4 sockets; `None` if every socket has to be requested.
    fn ready_slot(&self, to: &Rc<EgressDestination>) -> Option<ReadySlot> {
        let _ = to;
        None
    }

    /// Records that a socket was taken from the ready slot.
    fn confirm_taken(&self, to: &Rc<EgressDestination>, socket: SocketId) -> Option<WarmSocket> {
        let _ = (to, socket);
        None
    }

    /// Returns the counters of a destination.
    fn counters_for(&self, to: &Rc<EgressDestination>) -> Rc<DestinationCounters>;
}

/// Registers a descriptor with the runtime for readability.
#[expect(
    deprecated,
    reason = "its successor is unsafe: a descriptor must stay open while it is registered, as those that own theirs do"
)]
fn watch_readable<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(owner, Interest::READABLE)
}
