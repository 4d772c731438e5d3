//! Selection of a socket among several on one port.
#![expect(unsafe_code, reason = "rustix has no SO_ATTACH_REUSEPORT_CBPF")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Attaches a classic BPF program to all sockets that share a socket's port
/// (`SO_ATTACH_REUSEPORT_CBPF`, socket(7)).
///
/// The program gets a datagram's payload and returns the index of a socket, in bind order. For an
/// index without a socket, the kernel hashes the packet's addresses. An instruction is code, jump
/// if true, jump if false, operand (`struct sock_filter`). No privilege is needed.
///
/// # Errors
/// Fails when the kernel rejects the program, or the socket shares no port.
pub fn attach_steering_program(
    socket: impl AsFd,
    program: &[(u16, u8, u8, u32)],
) -> io::Result<()> {
    let mut filter: Vec<_> = program
        .iter()
        .map(|&(code, jt, jf, k)| libc::sock_filter { code, jt, jf, k })
        .collect();
    let len = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let whole = libc::sock_fprog {
        len,
        filter: filter.as_mut_ptr(),
    };
    let size =
        libc::socklen_t::try_from(size_of_val(&whole)).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the descriptor is open while it is borrowed; the kernel copies the program, whose
    // pointer and length belong to `filter`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const whole).cast(),
            size,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::{set_socket_reuseport, set_socket_timeout};
    use rustix::net::{AddressFamily, SocketType, bind, socket, sockopt};
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
    use std::time::Duration;

    fn shared_port_socket(addr: SocketAddr) -> UdpSocket {
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        set_socket_reuseport(&socket, true).unwrap();
        bind(&socket, &addr).unwrap();
        set_socket_timeout(
            &socket,
            sockopt::Timeout::Recv,
            Some(Duration::from_secs(10)),
        )
        .unwrap();
        socket.into()
    }

    /// A program that returns the payload's first octet.
    const FIRST_OCTET: [(u16, u8, u8, u32); 2] = [(0x30, 0, 0, 0), (0x16, 0, 0, 0)];

    #[test]
    fn packets_go_to_the_socket_the_program_selects() {
        let first = shared_port_socket((Ipv4Addr::LOCALHOST, 0).into());
        let addr = first.local_addr().unwrap();
        let all = [first, shared_port_socket(addr), shared_port_socket(addr)];
        attach_steering_program(&all[0], &FIRST_OCTET).unwrap();
        for _ in 0..8 {
            let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            for wanted in [2_u8, 0, 1] {
                sender.send_to(&[wanted], addr).unwrap();
                let mut got = [9];
                all[usize::from(wanted)].recv(&mut got).unwrap();
                assert_eq!(got, [wanted]);
            }
        }
    }

    #[test]
    fn an_invalid_program_is_refused() {
        let socket = shared_port_socket((Ipv4Addr::LOCALHOST, 0).into());
        assert!(attach_steering_program(&socket, &[]).is_err());
        assert!(attach_steering_program(&socket, &[(0xffff, 0, 0, 0)]).is_err());
    }
}
