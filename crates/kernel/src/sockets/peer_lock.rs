//! Locking of a connected socket to its peer.
//!
//! A program can disconnect a TCP socket (connect(2), `AF_UNSPEC`). The socket can then connect or
//! listen in the namespace that it was made in. A socket from the node's namespace would reach
//! anything. The node therefore gives away only sockets with a locked filter on received packets
//! (socket(7), `SO_ATTACH_FILTER` and `SO_LOCK_FILTER`).
//!
//! The filter drops packets of all other peers, so no handshake completes, neither by connecting
//! nor by listening. Only privileges in the node's namespace could remove it, and accepted sockets
//! inherit it. The filter cannot stop the first packet of a handshake.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use super::raw_options;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_OCTET: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const SHIFT_RIGHT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Offset of the network header in a filter; 0 is the TCP header (`linux/filter.h`).
const NETWORK_HEADER: u32 = libc::SKF_NET_OFF as u32;
/// Offsets of the source address in the IPv4 and the IPv6 header.
const SOURCE_V4: u32 = 12;
const SOURCE_V6: u32 = 8;

/// Locks a connected socket to its peer permanently.
///
/// # Errors
/// Fails when it is not connected, or already has a locked filter.
pub fn lock_to_peer(socket: impl AsFd) -> io::Result<()> {
    let peer = SocketAddr::try_from(
        rustix::net::getpeername(&socket)?.ok_or(io::ErrorKind::NotConnected)?,
    )?;
    raw_options::attach_filter(&socket, &mut peer_filter(peer))?;
    // The filter comes first: a locked socket accepts no other.
    raw_options::set_option(
        &socket,
        libc::SOL_SOCKET,
        libc::SO_LOCK_FILTER,
        &1_i32.to_ne_bytes(),
    )
}

/// Returns whether a socket's filter is locked.
pub fn is_filter_locked(socket: impl AsFd) -> bool {
    let mut locked = [0; 4];
    raw_options::get_option(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &mut locked).is_ok()
        && i32::from_ne_bytes(locked) == 1
}

/// Builds a filter of checks: a load and the expected value. The first failing check drops the
/// packet.
fn peer_filter(peer: SocketAddr) -> Vec<libc::sock_filter> {
    let mut checks = vec![];
    // An IPv4-mapped peer sends IPv4 packets, whatever the socket's family.
    match peer.ip().to_canonical() {
        IpAddr::V4(address) => {
            checks.push((NETWORK_HEADER + SOURCE_V4, address.to_bits()));
            assemble_filter(4, &checks, peer.port())
        }
        IpAddr::V6(address) => {
            let words = address.octets();
            let words = words
                .chunks_exact(4)
                .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
            checks.extend(
                (0..)
                    .step_by(4)
                    .map(|at| NETWORK_HEADER + SOURCE_V6 + at)
                    .zip(words),
            );
            assemble_filter(6, &checks, peer.port())
        }
    }
}

fn assemble_filter(version: u32, words: &[(u32, u32)], port: u16) -> Vec<libc::sock_filter> {
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = vec![
        op(LOAD_OCTET, 0, 0, NETWORK_HEADER),
        op(SHIFT_RIGHT, 0, 0, 4),
        op(JUMP_EQUAL, 0, 0, version),
    ];
    for &(at, word) in words {
        program.extend([op(LOAD_WORD, 0, 0, at), op(JUMP_EQUAL, 0, 0, word)]);
    }
    program.extend([
        op(LOAD_HALF, 0, 0, 0),
        op(JUMP_EQUAL, 0, 0, u32::from(port)),
    ]);
    let end = program.len(); // after the checks: accept the whole packet, or drop it
    for (at, check) in program
        .iter_mut()
        .enumerate()
        .filter(|(_, op)| op.code == JUMP_EQUAL)
    {
        check.jf = (end - at) as u8;
    }
    program.extend([op(RETURN, 0, 0, u32::MAX), op(RETURN, 0, 0, 0)]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{
        AddressFamily, SocketFlags, SocketType, connect_unspec, listen, socket_with,
    };
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    fn bind_server(at: &str) -> (TcpListener, SocketAddr) {
        let server = TcpListener::bind(at).unwrap();
        let address = server.local_addr().unwrap();
        (server, address)
    }

    /// Disconnects and connects to `other`; returns whether that succeeds within `timeout`.
    fn reconnects(socket: TcpStream, other: SocketAddr, timeout: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        connect_unspec(&socket).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _ = rustix::net::connect(&socket, &other); // the connection is in progress
        let timeout = Timespec::try_from(timeout).unwrap();
        poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&timeout)).unwrap() == 1
            && super::raw_options::tcp_state(&socket).unwrap()
                == super::raw_options::TcpState::Established
    }

    fn assert_reaches_only_its_peer(at: &str) {
        let ((peer, address), (_other, other_address)) = (bind_server(at), bind_server(at));
        let (free, mut locked_socket) = (
            TcpStream::connect(address).unwrap(),
            TcpStream::connect(address).unwrap(),
        );
        lock_to_peer(&locked_socket).unwrap();
        assert!(is_filter_locked(&locked_socket) && !is_filter_locked(&free));
        let _ = peer.accept().unwrap();
        peer.accept().unwrap().0.write_all(b"hello").unwrap();
        let mut received = [0; 5];
        locked_socket.read_exact(&mut received).unwrap();
        assert!(
            reconnects(free, other_address, Duration::from_secs(10)),
            "a socket without a filter reconnects"
        );
        assert!(!reconnects(
            locked_socket,
            other_address,
            Duration::from_millis(300)
        ));
    }

    #[test]
    fn a_locked_socket_reaches_only_its_peer() {
        assert_reaches_only_its_peer("127.0.0.1:0");
        assert_reaches_only_its_peer("[::1]:0");
    }

    #[test]
    fn a_locked_mapped_socket_reaches_only_its_peer() {
        let ((_peer, address), (_other, other_address)) =
            (bind_server("127.0.0.1:0"), bind_server("127.0.0.1:0"));
        let mapped = |to: SocketAddr| match to.ip() {
            IpAddr::V4(v4) => SocketAddr::from((v4.to_ipv6_mapped(), to.port())),
            IpAddr::V6(_) => to,
        };
        let locked_socket: OwnedFd = socket_with(
            AddressFamily::INET6,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::connect(&locked_socket, &mapped(address)).unwrap();
        lock_to_peer(&locked_socket).unwrap();
        assert!(!reconnects(
            TcpStream::from(locked_socket),
            mapped(other_address),
            Duration::from_millis(300)
        ));
    }

    #[test]
    fn a_locked_socket_cannot_accept_connections() {
        let (_peer, address) = bind_server("127.0.0.1:0");
        let reached = |lock: bool| {
            let socket = TcpStream::connect(address).unwrap();
            if lock {
                lock_to_peer(&socket).unwrap();
            }
            connect_unspec(&socket).unwrap();
            listen(&socket, 1).unwrap();
            let at = (address.ip(), socket.local_addr().unwrap().port());
            let reached =
                TcpStream::connect_timeout(&at.into(), Duration::from_millis(300)).is_ok();
            drop(socket);
            reached
        };
        assert!(
            reached(false),
            "a socket without a filter accepts connections"
        );
        assert!(!reached(true));
    }

    #[test]
    fn a_locked_filter_cannot_be_removed() {
        let (_peer, address) = bind_server("127.0.0.1:0");
        let locked_socket = TcpStream::connect(address).unwrap();
        lock_to_peer(&locked_socket).unwrap();
        assert!(lock_to_peer(&locked_socket).is_err());
        let zero = 0_i32.to_ne_bytes();
        assert!(
            raw_options::set_option(
                &locked_socket,
                libc::SOL_SOCKET,
                libc::SO_DETACH_FILTER,
                &zero
            )
            .is_err()
        );
        assert!(
            raw_options::set_option(
                &locked_socket,
                libc::SOL_SOCKET,
                libc::SO_LOCK_FILTER,
                &zero
            )
            .is_err()
        );
    }
}
