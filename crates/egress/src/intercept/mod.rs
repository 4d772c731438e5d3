//! A warm socket in the place of a function's own, at connect().
//!
//! An instance with a plain TCP destination runs under a filter that asks about connect() ([`nearpath_kernel::seccomp::listener`]). A thread of its own
//! answers (`clerk`): where the call means such a destination, the socket is as new as it was made, and the [`WarmSource`] has a warm one, that one takes its
//! number, and connect() returns 0: from there on no hop and no copy. Any doubt, and the kernel goes on with the call: the way out ([`crate::proxy`])
//! carries it, and decides by the kernel's own copy of the address whether it may. So nothing here is a guard, and nothing here waits for a destination.
//!
//! A socket that was given is never seen again: [`HandedSockets`] hears from the kernel when it is closed, so that its place below the ceiling becomes free.

mod decision;
mod fd_aliases;
mod handed_sockets;
mod reports;
mod supervisor;
mod warm_socket;
mod warm_source;

use std::io;
use std::os::fd::AsRawFd;
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

/// Where warm sockets are had. None of this waits.
pub trait WarmSource {
    /// Takes one that is connected, healthy at this moment, and was never used; of the family asked for, because the program sees it in every address.
    /// Where there is none, the way out is asked next.
    fn take_warm(&self, to: &Rc<EgressDestination>, family: SocketFamily) -> Option<WarmSocket>;

    /// Where one for IPv4 sockets lies ready to be taken without asking; `NoConnection`: each is asked for.
    fn ready_slot(&self, to: &Rc<EgressDestination>) -> Option<ReadySlot> {
        let _ = to;
        None
    }

    /// It was taken from there.
    fn confirm_taken(&self, to: &Rc<EgressDestination>, socket: SocketId) -> Option<WarmSocket> {
        let _ = (to, socket);
        None
    }

    /// Where it is written down.
    fn counters_for(&self, to: &Rc<EgressDestination>) -> Rc<DestinationCounters>;
}

/// Has the runtime say when there is something to read.
#[expect(
    deprecated,
    reason = "its successor is unsafe: a descriptor must stay open while it is registered, as those that own theirs do"
)]
fn watch_readable<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(owner, Interest::READABLE)
}
