//! getsockopt and setsockopt for options of any form.
#![expect(unsafe_code, reason = "rustix knows options one by one, and not all of them")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// States of a TCP socket that matter here (`net/tcp_states.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Connected, both ways open.
    Established,
    /// Not connected: new, or over.
    Closed,
    /// This end has said all, and the other one has not confirmed it.
    Ending,
    /// Anything else.
    Other,
}

/// The state of a TCP socket.
///
/// # Errors
/// When it is no TCP socket.
pub fn state(socket: impl AsFd) -> io::Result<State> {
    let mut first = [0]; // `tcpi_state` of `struct tcp_info`, of which the kernel gives as much as is asked for
    match (get(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut first)?, first) {
        (1, [1]) => Ok(State::Established),
        (1, [4 | 9 | 11]) => Ok(State::Ending),
        (1, [7]) => Ok(State::Closed),
        _ => Ok(State::Other),
    }
}

/// Reads an option; returns how many octets it has.
pub(super) fn get(socket: impl AsFd, level: i32, name: i32, value: &mut [u8]) -> io::Result<usize> {
    let mut length = value.len() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` octets to `value`, and to `length` how many.
    match unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut length) } {
        0 => Ok(length as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets an option.
pub(crate) fn set(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `value.len()` octets from `value`.
    match unsafe { libc::setsockopt(fd, level, name, value.as_ptr().cast(), value.len() as libc::socklen_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Attaches a classic BPF program that sees what the socket receives.
pub(super) fn attach(socket: impl AsFd, filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let (fd, size) = (socket.as_fd().as_raw_fd(), size_of_val(&program) as libc::socklen_t);
    let at = (&raw const program).cast();
    // SAFETY: the kernel copies the program, whose pointer and length belong to `filter`, which outlives the call.
    match unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
