//! A connected socket that hears its peer and nobody else, whatever is done to it later.
//!
//! A program that holds a connected TCP socket may disconnect it (connect(2), `AF_UNSPEC`), and connect it somewhere else or listen with it, in the
//! namespace that the socket was made in. One from the node's namespace would take a function anywhere. So the node gives away only sockets with a
//! filter on what they receive (socket(7), `SO_ATTACH_FILTER` with `SO_LOCK_FILTER`): no answer of another peer gets through, hence no handshake is
//! completed, neither by connecting nor by listening. Nobody without power over the node's namespace takes the filter off; sockets accepted from a
//! listening one inherit it. What it does not hold back is a handshake's first packet.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use super::raw;

const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
const LOAD_OCTET: u16 = (libc::BPF_LD | libc::BPF_B | libc::BPF_ABS) as u16;
const SHIFT: u16 = (libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K) as u16;
const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
/// Where a filter finds the network header; at 0 it finds TCP's (`linux/filter.h`).
const NETWORK: u32 = libc::SKF_NET_OFF as u32;
/// Places of the source address in IPv4's and IPv6's header.
const SOURCE_V4: u32 = 12;
const SOURCE_V6: u32 = 8;

/// Has a connected socket hear its peer alone, for good.
///
/// # Errors
/// When it is not connected, or has a locked filter already.
pub fn lock_to_peer(socket: impl AsFd) -> io::Result<()> {
    let peer = SocketAddr::try_from(rustix::net::getpeername(&socket)?.ok_or(io::ErrorKind::NotConnected)?)?;
    raw::attach(&socket, &mut filter(peer))?;
    raw::set(&socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1_i32.to_ne_bytes())
}

/// Whether a socket's filter is locked.
pub fn is_locked(socket: impl AsFd) -> bool {
    let mut locked = [0; 4];
    raw::get(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &mut locked).is_ok() && i32::from_ne_bytes(locked) == 1
}

/// Checks, each of them a load and what it has to give; the first that fails drops the packet.
fn filter(peer: SocketAddr) -> Vec<libc::sock_filter> {
    let mut checks = vec![];
    match peer.ip().to_canonical() {
        IpAddr::V4(address) => {
            checks.push((NETWORK + SOURCE_V4, address.to_bits()));
            whole(4, &checks, peer.port())
        }
        IpAddr::V6(address) => {
            let words = address.octets();
            let words = words.chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
            checks.extend((0..).step_by(4).map(|at| NETWORK + SOURCE_V6 + at).zip(words));
            whole(6, &checks, peer.port())
        }
    }
}

fn whole(version: u32, words: &[(u32, u32)], port: u16) -> Vec<libc::sock_filter> {
    let op = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut program = vec![op(LOAD_OCTET, 0, 0, NETWORK), op(SHIFT, 0, 0, 4), op(EQUAL, 0, 0, version)];
    for &(at, word) in words {
        program.extend([op(LOAD_WORD, 0, 0, at), op(EQUAL, 0, 0, word)]);
    }
    program.extend([op(LOAD_HALF, 0, 0, 0), op(EQUAL, 0, 0, u32::from(port))]);
    let end = program.len(); // then: take the whole packet, or nothing of it
    for (at, check) in program.iter_mut().enumerate().filter(|(_, op)| op.code == EQUAL) {
        check.jf = (end - at) as u8;
    }
    program.extend([op(RETURN, 0, 0, u32::MAX), op(RETURN, 0, 0, 0)]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, connect_unspec, listen, socket_with};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    fn server(at: &str) -> (TcpListener, SocketAddr) {
        let server = TcpListener::bind(at).unwrap();
        let address = server.local_addr().unwrap();
        (server, address)
    }

    /// Disconnects, connects to `other`; whether that got through within `patience`.
    fn again(socket: TcpStream, other: SocketAddr, patience: Duration) -> bool {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        connect_unspec(&socket).unwrap();
        socket.set_nonblocking(true).unwrap();
        let _ = rustix::net::connect(&socket, &other); // in progress
        let patience = Timespec::try_from(patience).unwrap();
        poll(&mut [PollFd::new(&socket, PollFlags::OUT)], Some(&patience)).unwrap() == 1
            && super::raw::state(&socket).unwrap() == super::raw::State::Established
    }

    fn hears_its_peer_alone(at: &str) {
        let ((peer, address), (_other, elsewhere)) = (server(at), server(at));
        let (free, mut held) = (TcpStream::connect(address).unwrap(), TcpStream::connect(address).unwrap());
        lock_to_peer(&held).unwrap();
        assert!(is_locked(&held) && !is_locked(&free));
        let _ = peer.accept().unwrap();
        peer.accept().unwrap().0.write_all(b"hello").unwrap();
        let mut heard = [0; 5];
        held.read_exact(&mut heard).unwrap();
        assert!(again(free, elsewhere, Duration::from_secs(10)), "one without a filter goes anywhere");
        assert!(!again(held, elsewhere, Duration::from_millis(300)));
    }

    #[test]
    fn a_locked_socket_reaches_its_peer_alone() {
        hears_its_peer_alone("127.0.0.1:0");
        hears_its_peer_alone("[::1]:0");
    }

    #[test]
    fn one_made_for_mapped_addresses_is_held_as_well() {
        let ((_peer, address), (_other, elsewhere)) = (server("127.0.0.1:0"), server("127.0.0.1:0"));
        let mapped = |to: SocketAddr| match to.ip() {
            IpAddr::V4(v4) => SocketAddr::from((v4.to_ipv6_mapped(), to.port())),
            IpAddr::V6(_) => to,
        };
        let held: OwnedFd = socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::connect(&held, &mapped(address)).unwrap();
        lock_to_peer(&held).unwrap();
        assert!(!again(TcpStream::from(held), mapped(elsewhere), Duration::from_millis(300)));
    }

    #[test]
    fn a_locked_socket_takes_no_callers() {
        let (_peer, address) = server("127.0.0.1:0");
        let reached = |lock: bool| {
            let socket = TcpStream::connect(address).unwrap();
            if lock {
                lock_to_peer(&socket).unwrap();
            }
            connect_unspec(&socket).unwrap();
            listen(&socket, 1).unwrap();
            let at = (address.ip(), socket.local_addr().unwrap().port());
            let reached = TcpStream::connect_timeout(&at.into(), Duration::from_millis(300)).is_ok();
            drop(socket);
            reached
        };
        assert!(reached(false), "one without a filter takes them");
        assert!(!reached(true));
    }

    #[test]
    fn a_filter_is_not_taken_off() {
        let (_peer, address) = server("127.0.0.1:0");
        let held = TcpStream::connect(address).unwrap();
        lock_to_peer(&held).unwrap();
        assert!(lock_to_peer(&held).is_err());
        let zero = 0_i32.to_ne_bytes();
        assert!(raw::set(&held, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &zero).is_err());
        assert!(raw::set(&held, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &zero).is_err());
    }
}
