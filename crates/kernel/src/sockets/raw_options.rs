//! getsockopt and setsockopt for options of any type.
#![expect(
    unsafe_code,
    reason = "rustix knows options one by one, and not all of them"
)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Relevant states of a TCP socket (`net/tcp_states.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpState {
    /// Connected, open in both directions.
    Established,
    /// Not connected: new, or closed.
    Closed,
    /// Closed by this end, without the peer's acknowledgement yet.
    Closing,
    /// Any other state.
    Other,
}

/// Returns the state of a TCP socket.
///
/// # Errors
/// Fails when it is not a TCP socket.
pub fn tcp_state(socket: impl AsFd) -> io::Result<TcpState> {
    // `tcpi_state` is the first field of `struct tcp_info`; the kernel copies only as much as
    // requested
    let mut state = [0];
    match (
        get_option(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut state)?,
        state,
    ) {
        (1, [1]) => Ok(TcpState::Established),
        // TCP_FIN_WAIT1, TCP_LAST_ACK and TCP_CLOSING
        (1, [4 | 9 | 11]) => Ok(TcpState::Closing),
        (1, [7]) => Ok(TcpState::Closed),
        _ => Ok(TcpState::Other),
    }
}

/// Reads an option; returns its length in octets.
pub(super) fn get_option(
    socket: impl AsFd,
    level: i32,
    name: i32,
    value: &mut [u8],
) -> io::Result<usize> {
    let mut length = value.len() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `length` octets to `value`, and to `length` how many.
    match unsafe { libc::getsockopt(fd, level, name, value.as_mut_ptr().cast(), &raw mut length) } {
        0 => Ok(length as usize),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets an option.
pub(crate) fn set_option(socket: impl AsFd, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel reads `value.len()` octets from `value`.
    match unsafe {
        libc::setsockopt(
            fd,
            level,
            name,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Attaches a classic BPF program that filters received packets.
pub(super) fn attach_filter(socket: impl AsFd, filter: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let (fd, size) = (
        socket.as_fd().as_raw_fd(),
        size_of_val(&program) as libc::socklen_t,
    );
    let at = (&raw const program).cast();
    // SAFETY: the kernel copies the program, whose pointer and length belong to `filter`, which
    // outlives the call.
    match unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, at, size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
