//! The programs of `bpf/`, loaded and fed.
//!
//! An [`Exchange`] is the delivery mode `sockmap` and belongs to one security domain. It makes a socket for each party, writes
//! down who may send where, and has the kernel carry 32-byte records from socket to socket; see `bpf/sk_msg.c`. A
//! [`Forwarder`] belongs to one switch and moves packets between the namespaces that hang on it; see `bpf/tc_forward.c`.
//! A [`Fence`] keeps the sockets of one thread where they were connected to, also in other hands; see `bpf/sock_fence.c`. It also lets that thread open
//! their windows; see `bpf/sock_window.c`.
//! Maps, programs, attachments and the network namespace of the sockets are anonymous: they end with whoever holds them.

mod exchange;
mod fence;
mod forwarder;
mod object;
mod sockets;
mod window;

use std::io;

use nearpath_types::Eip;

use crate::station::NEXT_HOP;
use crate::switch::Switch;

pub use exchange::{Counts, Exchange, Seat};
pub use fence::Fence;
pub use forwarder::{Carried, Forwarder, Packets};

/// Whether this build has the programs and this process may load them: tries it. For `nearpath doctor`.
///
/// # Errors
/// What is missing, and what to do.
pub fn possible() -> io::Result<()> {
    Exchange::create().map(drop)
}

/// The same for forwarders: puts one on a device of a namespace made for it, which ends with it. Tried, not looked up.
///
/// # Errors
/// What is missing, and what to do.
pub fn forwarding_possible() -> io::Result<()> {
    let switch = Switch::create(NEXT_HOP)?;
    Forwarder::load()?.attach(&switch, Eip(NEXT_HOP), "lo")
}
