//! How a listener gets from the process under it to the one that answers: one message over a socket pair.
//!
//! With it come two sockets as new as they can be, one a family, made in the namespace of the process: what a program has set on one of its own shows
//! only beside one on which nothing was set.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::listener::{self, Listener};
use crate::sandbox::{put, take};
use crate::sockets::Options;

/// Longest text of an error.
const TEXT: usize = 256;

/// A listener, and what new TCP sockets are like where its programs run.
#[derive(Debug)]
pub struct Handed {
    /// Where the questions arrive.
    pub listener: Listener,
    /// Of `AF_INET`.
    pub fresh_v4: Options,
    /// Of `AF_INET6`; `None`: the machine has no IPv6, so its programs have no such sockets.
    pub fresh_v6: Option<Options>,
}

/// Puts the calling thread under a listener and sends that away; or why there is none. Either way the program may go on: it reaches what it reached
/// before.
///
/// # Errors
/// When there is no listener, or nobody who takes it. A thread whose listener nobody took has connect() fail with `ENOSYS`: it must end.
pub fn hand_out(socket: impl AsFd) -> io::Result<()> {
    let fresh = [AddressFamily::INET, AddressFamily::INET6].map(new_socket);
    let installed = listener::install();
    let fds = [installed.as_ref().ok(), fresh[0].as_ref().ok(), fresh[1].as_ref().ok()];
    match (&installed, &fresh[0]) {
        (Ok(_), Ok(_)) => {
            let fds: Vec<BorrowedFd<'_>> = fds.into_iter().flatten().map(AsFd::as_fd).collect();
            put(socket.as_fd(), b"+", &fds)
        }
        (Err(why), _) | (_, Err(why)) => put(socket.as_fd(), why.to_string().as_bytes(), &[]),
    }
}

fn new_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

/// Receives what [`hand_out`] sent. Blocks until then, unless the socket does not.
///
/// # Errors
/// Why there is no listener; [`io::ErrorKind::UnexpectedEof`] when the process ended before.
pub fn receive(socket: impl AsFd) -> io::Result<Handed> {
    let mut text = [0; TEXT];
    let (length, fds) = take(socket.as_fd(), &mut text)?;
    let mut fds = fds.into_iter();
    match (length, fds.next(), fds.next()) {
        (0, ..) => Err(io::ErrorKind::UnexpectedEof.into()),
        (_, Some(listener), Some(v4)) => Ok(Handed {
            listener: Listener::new(listener),
            fresh_v4: Options::of(v4, false),
            fresh_v6: fds.next().map(|v6| Options::of(v6, true)),
        }),
        _ => Err(io::Error::other(String::from_utf8_lossy(&text[..length]).into_owned())),
    }
}
