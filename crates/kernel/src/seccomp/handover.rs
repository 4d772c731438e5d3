//! Handover of a seccomp listener from the filtered process to the node: one message over a socket
//! pair.
//!
//! Two new sockets, one per address family, accompany it. They are made in the process's namespace
//! and show the default options there, so changed options can be detected.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::listener::{self, SeccompListener};
use crate::sandbox::{receive_message, send_message};
use crate::sockets::SocketOptions;

/// Maximum length of an error text in octets.
const MAX_ERROR_LEN: usize = 256;

/// A listener, and the default options of TCP sockets in the instance's namespace.
#[derive(Debug)]
pub struct ListenerHandover {
    /// The listener of the process.
    pub listener: SeccompListener,
    /// Default options of `AF_INET` sockets.
    pub fresh_v4: SocketOptions,
    /// Default options of `AF_INET6` sockets; `None` on a machine without IPv6.
    pub fresh_v6: Option<SocketOptions>,
}

/// Installs a listener for the calling thread and sends it, or sends the reason for its absence.
/// Without one the thread works as before.
///
/// # Errors
/// Fails when the receiver is gone. The calling thread must end then, because its connect() fails
/// with `ENOSYS`.
pub fn send_listener(socket: impl AsFd) -> io::Result<()> {
    // Made here, in the instance's namespace: its sysctls set the defaults.
    let new_sockets = [AddressFamily::INET, AddressFamily::INET6].map(new_tcp_socket);
    let installed = listener::install_listener();
    let fds = [
        installed.as_ref().ok(),
        new_sockets[0].as_ref().ok(),
        new_sockets[1].as_ref().ok(),
    ];
    match (&installed, &new_sockets[0]) {
        (Ok(_), Ok(_)) => {
            let fds: Vec<BorrowedFd<'_>> = fds.into_iter().flatten().map(AsFd::as_fd).collect();
            // The octet has no meaning: a message without data would look like the end of the
            // stream.
            send_message(socket.as_fd(), b"+", &fds)
        }
        (Err(why), _) | (_, Err(why)) => {
            send_message(socket.as_fd(), why.to_string().as_bytes(), &[])
        }
    }
}

fn new_tcp_socket(family: AddressFamily) -> io::Result<OwnedFd> {
    Ok(socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?)
}

/// Receives the message of [`send_listener`]. Blocks, unless the socket is non-blocking.
///
/// # Errors
/// Returns the reason for the absence of a listener; [`io::ErrorKind::UnexpectedEof`] when the
/// process ended before.
pub fn receive_listener(socket: impl AsFd) -> io::Result<ListenerHandover> {
    let mut text = [0; MAX_ERROR_LEN];
    let (length, fds) = receive_message(socket.as_fd(), &mut text)?;
    let mut fds = fds.into_iter();
    match (length, fds.next(), fds.next()) {
        (0, ..) => Err(io::ErrorKind::UnexpectedEof.into()),
        (_, Some(listener), Some(v4)) => Ok(ListenerHandover {
            listener: SeccompListener::new(listener),
            fresh_v4: SocketOptions::read_from(v4, false),
            fresh_v6: fds.next().map(|v6| SocketOptions::read_from(v6, true)),
        }),
        _ => Err(io::Error::other(
            String::from_utf8_lossy(&text[..length]).into_owned(),
        )),
    }
}
