//! Whether a connection that nobody uses is still good: nothing to read, no end, no error.

use std::io;
use std::os::fd::AsFd;
use std::task::Context;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use tokio::io::Interest;
use tokio::net::TcpStream;

/// Asks the kernel, not the runtime, whose news may be late.
pub fn is_quiet(stream: impl AsFd) -> bool {
    peek_socket(stream).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
}

/// Whether it has ended, or said something; if not, `cx` is woken when it does.
pub(super) fn has_ended(stream: &TcpStream, cx: &mut Context<'_>) -> bool {
    while stream.poll_read_ready(cx).is_ready() {
        // A false alarm is struck off by `try_io`, so that the next one is heard.
        match stream.try_io(Interest::READABLE, || peek_socket(stream)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return true,
        }
    }
    false
}

fn peek_socket(stream: impl AsFd) -> io::Result<()> {
    let looked = recv(
        stream,
        &mut [0u8; 1][..],
        RecvFlags::PEEK | RecvFlags::DONTWAIT,
    );
    looked.map(drop).map_err(Errno::into)
}
