//! Checks unused connections: nothing to read, no end, no error.

use std::io;
use std::os::fd::AsFd;
use std::task::Context;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Returns true if the socket is open and has nothing to read. Asks the kernel, because the
/// runtime's readiness may be stale.
pub fn is_quiet(stream: impl AsFd) -> bool {
    peek_socket(stream).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Returns true if the connection has ended or has bytes to read; otherwise registers `cx` for
/// that.
pub(super) fn has_ended(stream: &TcpStream, cx: &mut Context<'_>) -> bool {
    while stream.poll_read_ready(cx).is_ready() {
        // `try_io` clears a false readiness, so that the next event wakes this task.
        match stream.try_io(Interest::READABLE, || peek_socket(stream)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return true,
        }
    }
    false
}

fn peek_socket(stream: impl AsFd) -> io::Result<()> {
    // `PEEK` leaves the bytes to the next reader; `DONTWAIT` works on blocking sockets as well.
    let peeked = recv(
        stream,
        &mut [0u8; 1][..],
        RecvFlags::PEEK | RecvFlags::DONTWAIT,
    );
    peeked.map(drop).map_err(Errno::into)
}
