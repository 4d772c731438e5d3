//! A warm socket in the place of a function's own, at connect().
//!
//! An instance with a plain TCP destination runs under a filter that asks about connect() ([`nearpath_kernel::seccomp::listener`]). A thread of its own
//! answers (`clerk`): where the call means such a destination, the socket is as new as it was made, and the [`Stock`] has a warm one, that one takes its
//! number, and connect() returns 0: from there on no hop and no copy. Any doubt, and the kernel goes on with the call: the way out ([`crate::proxy`])
//! carries it, and decides by the kernel's own copy of the address whether it may. So nothing here is a guard, and nothing here waits for a destination.
//!
//! A socket that was given is never seen again: [`Given`] hears from the kernel when it is closed, so that its place below the ceiling becomes free.

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

pub use decision::{Doubt, Family};
pub use handed_sockets::Given;
pub use reports::supervise;
#[doc(hidden)]
pub use reports::supervise_blindly;
pub use warm_socket::Warm;
pub(crate) use warm_source::Shelf;
#[doc(hidden)]
pub use warm_source::kept;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use nearpath_connpool::counters::Ledger;
use nearpath_connpool::destination::Destination;
use nearpath_connpool::ready_slot::Tray;
use nearpath_connpool::state::SocketId;

/// Where warm sockets are had. None of this waits.
pub trait Stock {
    /// Takes one that is connected, healthy at this moment, and was never used; of the family asked for, because the program sees it in every address.
    /// Where there is none, the way out is asked next.
    fn take(&self, to: &Rc<Destination>, family: Family) -> Option<Warm>;

    /// Where one for IPv4 sockets lies ready to be taken without asking; `None`: each is asked for.
    fn tray(&self, to: &Rc<Destination>) -> Option<Tray> {
        let _ = to;
        None
    }

    /// It was taken from there.
    fn taken(&self, to: &Rc<Destination>, socket: SocketId) -> Option<Warm> {
        let _ = (to, socket);
        None
    }

    /// Where it is written down.
    fn ledger(&self, to: &Rc<Destination>) -> Rc<Ledger>;
}

/// Has the runtime say when there is something to read.
#[expect(
    deprecated,
    reason = "its successor is unsafe: a descriptor must stay open while it is registered, as those that own theirs do"
)]
fn watch<T: AsRawFd>(owner: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(owner, Interest::READABLE)
}
