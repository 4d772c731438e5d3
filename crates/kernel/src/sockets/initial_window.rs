//! Setting the initial congestion window of a connection; see `bpf/sock_window.c`.

use std::io;
use std::os::fd::AsFd;

use super::raw_options::{get_option, set_option};

/// Option number that only the BPF program implements.
const SET_INITIAL_WINDOW: i32 = 0x4e50;
/// Maximum send buffer that is requested, in octets: the default of net.ipv4.tcp_wmem's third
/// value.
const MAX_SEND_BUFFER_BYTES: u64 = 4 << 20;

/// Initial sending limits of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitialWindow {
    /// Segments in flight before the first acknowledgement.
    pub segments: u32,
    /// Octets of those segments.
    pub bytes: u64,
    /// Octets per second until the first acknowledgement.
    pub pacing_rate: u32,
}

/// Sets the window of an unused connection that the calling thread made behind a
/// [`SocketCgroupGuard`](crate::bpf::SocketCgroupGuard).
///
/// The send buffer grows with it; the kernel continues to size it afterwards.
///
/// # Errors
/// Fails with `ENOPROTOOPT` without the guard, and with `EPERM` after data was sent.
pub fn set_initial_window(socket: impl AsFd, window: &InitialWindow) -> io::Result<()> {
    let request = [
        window.segments.to_ne_bytes(),
        window.pacing_rate.to_ne_bytes(),
    ]
    .concat();
    set_option(&socket, libc::IPPROTO_TCP, SET_INITIAL_WINDOW, &request)?;
    grow_send_buffer(
        &socket,
        window.bytes.saturating_mul(2).min(MAX_SEND_BUFFER_BYTES),
    )
}

/// Grows the send buffer. Otherwise the buffer limits the first flight until the first
/// acknowledgement, when the kernel grows it.
fn grow_send_buffer(socket: impl AsFd, bytes: u64) -> io::Result<()> {
    let mut now = [0; 4];
    get_option(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, &mut now)?;
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX);
    if i64::from(i32::from_ne_bytes(now)) >= 2 * i64::from(wanted) {
        return Ok(());
    }
    // SO_SNDBUF would be cut to net.core.wmem_max.
    set_option(
        &socket,
        libc::SOL_SOCKET,
        libc::SO_SNDBUFFORCE,
        &wanted.to_ne_bytes(),
    )?;
    // Setting the size locks it; 0 returns it to the kernel's control.
    set_option(
        &socket,
        libc::SOL_SOCKET,
        libc::SO_BUF_LOCK,
        &0_i32.to_ne_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::SocketCgroupGuard;
    use crate::sockets::tcp_flow_info;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;
    use std::thread;

    const WINDOW: InitialWindow = InitialWindow {
        segments: 77,
        bytes: 110_000,
        pacing_rate: 50_000_000,
    };

    /// Runs `work` on a thread with a guard, with a connection and its peer.
    fn run_guarded(work: impl FnOnce(TcpStream, TcpStream) + Send + 'static) -> Result<(), String> {
        let thread = thread::spawn(|| {
            let guard = SocketCgroupGuard::enter_current_thread().map_err(|why| why.to_string())?;
            guard
                .check_window_programs()
                .map_err(|why| why.to_string())?;
            let server = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(server.local_addr().unwrap()).unwrap();
            work(client, server.accept().unwrap().0);
            Ok(())
        });
        thread.join().unwrap()
    }

    #[test]
    fn an_idle_connection_starts_with_the_window() {
        let done = run_guarded(|client, _peer| {
            set_initial_window(&client, &WINDOW).unwrap();
            assert_eq!(
                tcp_flow_info(&client).unwrap().cwnd_segments,
                WINDOW.segments
            );
            let mut buffer = [0; 4];
            get_option(&client, libc::SOL_SOCKET, libc::SO_SNDBUF, &mut buffer).unwrap();
            assert!(i32::from_ne_bytes(buffer) >= 440_000);
            let mut lock = [0; 4];
            get_option(&client, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &mut lock).unwrap();
            assert_eq!(
                i32::from_ne_bytes(lock),
                0,
                "the kernel still sizes the buffer"
            );
        });
        done.unwrap_or_else(|why| {
            nearpath_testkit::skip!("initial windows are unavailable: {why}")
        });
    }

    #[test]
    fn a_used_connection_keeps_its_own_window() {
        let done = run_guarded(|mut client, mut peer| {
            client.write_all(b"x").unwrap();
            peer.read_exact(&mut [0]).unwrap();
            let refused = set_initial_window(&client, &WINDOW).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        });
        done.unwrap_or_else(|why| {
            nearpath_testkit::skip!("initial windows are unavailable: {why}")
        });
    }

    #[test]
    fn another_thread_cannot_set_the_window() {
        let ((sender, receiver), (result_sender, result_receiver)) =
            (mpsc::channel::<TcpStream>(), mpsc::channel());
        thread::spawn(move || {
            let Ok(client) = receiver.recv() else { return };
            let refused = set_initial_window(&client, &WINDOW).unwrap_err();
            result_sender
                .send((
                    refused.raw_os_error(),
                    tcp_flow_info(&client).unwrap().cwnd_segments,
                ))
                .unwrap();
        });
        let done = run_guarded(move |client, _peer| {
            sender.send(client).unwrap();
            let (refused, window) = result_receiver.recv().unwrap();
            assert_eq!(refused, Some(libc::ENOPROTOOPT));
            assert_ne!(window, WINDOW.segments);
        });
        done.unwrap_or_else(|why| {
            nearpath_testkit::skip!("initial windows are unavailable: {why}")
        });
    }
}
