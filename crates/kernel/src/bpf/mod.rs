//! The programs of `bpf/`, loaded and fed: the delivery mode `sockmap`.
//!
//! An [`Exchange`] belongs to one security domain. It makes a socket for each party, writes down who may send where, and has
//! the kernel carry 32-byte records from socket to socket; see `bpf/sk_msg.c`. Maps, programs and the network namespace of
//! the sockets are anonymous: they end with the exchange and the sockets.

mod exchange;
mod sockets;

use std::io;

pub use exchange::{Counts, Exchange, Seat};

/// Whether this build has the programs and this process may load them: tries it. For `nearpath doctor`.
///
/// # Errors
/// What is missing, and what to do.
pub fn possible() -> io::Result<()> {
    Exchange::create().map(drop)
}

/// The compiled program, by its name in `bpf/`.
#[cfg(nearpath_bpf)]
fn sk_msg() -> io::Result<&'static [u8]> {
    Ok(aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/sk_msg.o")))
}

#[cfg(not(nearpath_bpf))]
fn sk_msg() -> io::Result<&'static [u8]> {
    let why = "this nearpath was built without BPF programs: install clang and build again";
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}
