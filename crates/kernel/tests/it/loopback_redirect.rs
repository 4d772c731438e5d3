//! `bpf/sock_loopback.c` over real connections: the kernel has no test run for these programs.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use nearpath_kernel::bpf::{LoopbackCounters, LoopbackRedirect};
use nearpath_testkit::need_support;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::sendfile;
use rustix::io::ioctl_fionread;
use rustix::net::{AddressFamily, RecvFlags, SocketType, connect, recv, socket};

/// `MAX_RESPONSE_BYTES` of `bpf/sock_loopback.c`.
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// `MESSAGE_OVERHEAD_BYTES` of `bpf/sock_loopback.c`.
const MESSAGE_OVERHEAD_BYTES: usize = 1024;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";

/// The gateway's end of a connection, and the server's.
struct Ends {
    gateway: TcpStream,
    server: TcpStream,
}

impl Ends {
    /// Connects a marked socket to a server.
    fn connect(redirect: &LoopbackRedirect) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self::connect_to(&listener, listener.local_addr().unwrap(), |gateway| {
            redirect.mark_socket(gateway)
        })
    }

    fn connect_to(
        listener: &TcpListener,
        addr: SocketAddr,
        mark: impl FnOnce(&TcpStream) -> io::Result<()>,
    ) -> Self {
        let family = match addr.is_ipv6() {
            true => AddressFamily::INET6,
            false => AddressFamily::INET,
        };
        let gateway = TcpStream::from(socket(family, SocketType::STREAM, None).unwrap());
        mark(&gateway).unwrap();
        connect(&gateway, &addr).unwrap();
        let (server, _) = listener.accept().unwrap();
        for end in [&gateway, &server] {
            end.set_nodelay(true).unwrap();
            end.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        }
        Self { gateway, server }
    }

    /// Sends a request and reads it.
    fn request(&mut self, request: &[u8]) {
        self.gateway.write_all(request).unwrap();
        assert_eq!(read(&self.server, request.len()), request);
    }

    /// Sends a response in parts and reads it.
    fn respond(&mut self, parts: &[&[u8]]) {
        for part in parts {
            self.server.write_all(part).unwrap();
        }
        let whole = parts.concat();
        assert!(read(&self.gateway, whole.len()) == whole, "wrong bytes");
    }
}

fn read(mut from: &TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    from.read_exact(&mut bytes).unwrap();
    bytes
}

/// Bytes that differ from place to place, so that a wrong order shows.
fn pattern(count: usize, first: u8) -> Vec<u8> {
    let byte = |index: usize| (index / 7).to_le_bytes()[index % 2].wrapping_add(first);
    (0..count).map(byte).collect()
}

/// Writes until the kernel takes nothing more, or `max_bytes`; returns the count.
fn write_until_full(to: &mut TcpStream, max_bytes: usize) -> usize {
    to.set_nonblocking(true).unwrap();
    let (part, mut written) = (pattern(1000, 0), 0);
    while written < max_bytes {
        match to.write(&part) {
            Ok(n) => written += n,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    to.set_nonblocking(false).unwrap();
    written
}

fn counters(connections: u64, redirected: u64, over_tcp: u64) -> LoopbackCounters {
    LoopbackCounters {
        connections,
        redirected,
        over_tcp,
    }
}

#[test]
fn requests_and_responses_are_redirected() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let mut ends = Ends::connect(&redirect);
    for round in 1..=3 {
        ends.request(REQUEST);
        ends.respond(&[b"head", b"body"]);
        assert_eq!(redirect.read_counters(), counters(1, 3 * round, 0));
    }
}

#[test]
fn ipv6_and_ipv4_mapped_connections_are_redirected() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let addrs: [SocketAddr; 2] = [
        (Ipv6Addr::LOCALHOST, port).into(),
        (Ipv4Addr::LOCALHOST, port).into(),
    ];
    for addr in addrs {
        let mut ends = Ends::connect_to(&listener, addr, |socket| redirect.mark_socket(socket));
        ends.request(REQUEST);
        ends.respond(&[b"ok"]);
    }
    assert_eq!(redirect.read_counters(), counters(2, 4, 0));
}

#[test]
fn unmarked_connections_stay_on_tcp() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let mut ends = Ends::connect_to(&listener, addr, |_| Ok(()));
    ends.request(REQUEST);
    ends.respond(&[b"ok"]);
    assert_eq!(redirect.read_counters(), counters(0, 0, 0));
}

#[test]
fn a_server_never_gets_a_request_over_tcp() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let mut ends = Ends::connect(&redirect);
    let long = pattern(100_000, 1);
    for request in [REQUEST, &long, REQUEST] {
        ends.gateway.write_all(request).unwrap();
    }
    ends.respond(&[b"early"]);
    // The kernel counts redirected bytes only. A server such as nginx would wait for others.
    let all = 2 * REQUEST.len() + long.len();
    assert_eq!(ioctl_fionread(&ends.server).unwrap(), all as u64);
    assert_eq!(read(&ends.server, REQUEST.len()), REQUEST);
    assert!(read(&ends.server, long.len()) == long, "wrong bytes");
    assert_eq!(read(&ends.server, REQUEST.len()), REQUEST);
    assert_eq!(redirect.read_counters().over_tcp, 0);
}

#[test]
fn a_long_response_keeps_its_order_and_the_next_one_is_redirected() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let mut ends = Ends::connect(&redirect);
    let parts: Vec<_> = (0..20).map(|first| pattern(10_000, first)).collect();
    let parts: Vec<_> = parts.iter().map(Vec::as_slice).collect();
    for round in 1..=3 {
        ends.request(REQUEST);
        // The gateway reads after the last part was sent.
        ends.respond(&parts);
        let whole_parts = (MAX_RESPONSE_BYTES / (10_000 + MESSAGE_OVERHEAD_BYTES)) as u64;
        let over_tcp = parts.len() as u64 - whole_parts;
        let expected = counters(1, round * (1 + whole_parts), round * over_tcp);
        assert_eq!(redirect.read_counters(), expected);
    }
}

#[test]
fn the_end_of_the_gateways_connection_frees_what_its_server_has_not_read() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let mut ends = Ends::connect(&redirect);
    for _ in 0..100 {
        ends.gateway.write_all(REQUEST).unwrap();
        ends.respond(&[b"ok"]);
    }
    let unread = 100 * REQUEST.len() as u64;
    assert_eq!(ioctl_fionread(&ends.server).unwrap(), unread);
    drop(ends.gateway);
    let mut received = Vec::new();
    ends.server.read_to_end(&mut received).unwrap();
    assert_eq!(
        received, b"",
        "it has its end, and nothing of what is freed"
    );
}

#[test]
fn a_gateway_that_reads_nothing_holds_a_bounded_amount() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let mut ends = Ends::connect(&redirect);
    ends.request(REQUEST);
    let written = write_until_full(&mut ends.server, 100 << 20);
    assert!(
        written < 50 << 20,
        "nothing stops the sender: {written} bytes"
    );
    let redirected = redirect.read_counters().redirected;
    let messages = MAX_RESPONSE_BYTES / (1000 + MESSAGE_OVERHEAD_BYTES);
    assert_eq!(redirected, 1 + messages as u64);
    drop(ends.server); // as it exits
    let mut received = Vec::new();
    ends.gateway.read_to_end(&mut received).unwrap();
    assert_eq!(received.len(), written, "the end is behind all bytes");
}

#[test]
fn a_response_comes_before_the_end_of_its_connection() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    for ends_by in [Shutdown::Write, Shutdown::Both] {
        let mut ends = Ends::connect(&redirect);
        ends.request(REQUEST);
        ends.server.write_all(b"last").unwrap();
        ends.server.shutdown(ends_by).unwrap();
        let mut received = Vec::new();
        ends.gateway.read_to_end(&mut received).unwrap();
        assert_eq!(received, b"last");
    }
    assert_eq!(redirect.read_counters(), counters(2, 4, 0));
}

#[test]
fn a_send_to_a_closed_end_fails() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let mut ends = Ends::connect(&redirect);
    ends.request(REQUEST);
    assert_eq!(redirect.read_counters(), counters(1, 1, 0));
    drop(ends.server);
    let failed = (0..1000).any(|_| ends.gateway.write(REQUEST).is_err());
    assert!(failed, "writes to nobody go on");
}

#[test]
fn a_peek_finds_only_bytes_that_have_come() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let mut ends = Ends::connect(&redirect);
    ends.request(REQUEST);
    assert_eq!(redirect.read_counters(), counters(1, 1, 0));
    ends.respond(&[b"ok"]);
    let peek = |gateway: &TcpStream| {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        recv(gateway, &mut [0; 1], flags).map(|(_, count)| count)
    };
    assert_eq!(peek(&ends.gateway), Err(rustix::io::Errno::AGAIN));
    let is_readable = |gateway: &TcpStream, wait: &Timespec| {
        let mut polled = [PollFd::new(gateway, PollFlags::IN)];
        poll(&mut polled, Some(wait)).unwrap() == 1
    };
    assert!(!is_readable(&ends.gateway, &Timespec::default()));
    ends.server.write_all(b"x").unwrap();
    let half_a_minute = Timespec {
        tv_sec: 30,
        tv_nsec: 0,
    };
    assert!(is_readable(&ends.gateway, &half_a_minute));
    assert_eq!(peek(&ends.gateway), Ok(1));
    assert_eq!(read(&ends.gateway, 1), b"x", "the peek took nothing");
}

#[test]
fn a_file_that_a_server_sends_arrives_whole() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let mut file = tempfile::tempfile().unwrap();
    let content = pattern(300_000, 3);
    file.write_all(&content).unwrap();
    let mut ends = Ends::connect(&redirect);
    ends.request(REQUEST);
    assert_eq!(redirect.read_counters(), counters(1, 1, 0));
    let Ends {
        mut gateway,
        server,
    } = ends;
    let sender = std::thread::spawn(move || send_whole_file(&server, &file, 300_000));
    let mut received = Vec::new();
    gateway.read_to_end(&mut received).unwrap();
    sender.join().unwrap();
    assert!(received == content, "wrong bytes");
}

fn send_whole_file(to: &TcpStream, file: &File, bytes: u64) {
    let mut offset = 0;
    while offset < bytes {
        let left = usize::try_from(bytes - offset).unwrap();
        assert!(sendfile(to, file, Some(&mut offset), left).unwrap() > 0);
    }
}

#[test]
fn a_server_socket_that_is_connected_elsewhere_is_forgotten() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let mut ends = Ends::connect(&redirect);
    ends.request(REQUEST);
    rustix::net::connect_unspec(&ends.server).unwrap(); // resets the gateway's end
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    connect(&ends.server, &listener.local_addr().unwrap()).unwrap();
    let (other, _) = listener.accept().unwrap();
    ends.server.write_all(b"to the other").unwrap();
    other
        .set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    assert_eq!(read(&other, 12), b"to the other");
    assert_eq!(redirect.read_counters(), counters(1, 1, 0));
}

#[test]
fn open_connections_go_on_without_the_programs() {
    let redirect = need_support!(LoopbackRedirect::attach_to_own_group());
    let mut ends = Ends::connect(&redirect);
    ends.request(REQUEST);
    assert_eq!(redirect.read_counters(), counters(1, 1, 0));
    drop(redirect);
    ends.respond(&[b"ok"]);
    ends.request(REQUEST);
}
