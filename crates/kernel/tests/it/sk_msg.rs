//! `bpf/sk_msg.c` over real sockets: the kernel has no test run for this kind of program.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nearpath_kernel::bpf::{SockmapCounters, SockmapRouter};
use nearpath_testkit::need_support;

/// An endpoint's end of its socket, and the node's.
struct Endpoint {
    socket: TcpStream,
    node: TcpStream,
}

impl Endpoint {
    fn new(router: &SockmapRouter, number: u16) -> Self {
        let pair = router.add_endpoint(number).unwrap();
        let (socket, node) = (TcpStream::from(pair.endpoint), TcpStream::from(pair.node));
        for stream in [&socket, &node] {
            stream.set_nonblocking(false).unwrap();
            stream
                .set_read_timeout(Some(Duration::from_secs(30)))
                .unwrap();
        }
        Self { socket, node }
    }

    fn send(&mut self, records: &[[u8; 32]]) {
        self.socket.write_all(&records.concat()).unwrap();
    }
}

fn record(number: u8, channel: u32) -> [u8; 32] {
    let mut record = [0xee; 32]; // the sender field too, which the kernel overwrites
    record[0] = number;
    record[16..20].copy_from_slice(&channel.to_le_bytes());
    record
}

/// Reads number, channel and sender of the next record.
fn read_record(mut from: &TcpStream) -> (u8, u32, u32) {
    let mut record = [0; 32];
    from.read_exact(&mut record).unwrap();
    let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().unwrap());
    (record[0], word(16), word(20))
}

fn is_empty(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    let read = stream.read(&mut [0; 32]);
    stream.set_nonblocking(false).unwrap();
    read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
}

#[test]
fn records_of_one_send_are_routed_separately() {
    let router = need_support!(SockmapRouter::create());
    let [mut a, b, c] = [1, 2, 3].map(|number| Endpoint::new(&router, number));
    router.allow_channel(1, 10, 2).unwrap();
    router.allow_channel(1, 11, 3).unwrap();
    router.allow_channel(2, 12, 3).unwrap();
    // Two routes of a, one of b, and a channel without a route. The order per receiver must stay.
    a.send(&[
        record(0, 10),
        record(1, 11),
        record(2, 12),
        record(3, 10),
        record(4, 99),
        record(5, 11),
    ]);
    assert_eq!(
        [read_record(&b.socket), read_record(&b.socket)],
        [(0, 10, 1), (3, 10, 1)],
        "the kernel sets the sender"
    );
    assert_eq!(
        [read_record(&c.socket), read_record(&c.socket)],
        [(1, 11, 1), (5, 11, 1)]
    );
    assert_eq!(
        [read_record(&a.node), read_record(&a.node)],
        [(2, 12, 1), (4, 99, 1)],
        "the node receives denied records"
    );
    assert!(
        [&a.socket, &a.node, &b.socket, &b.node, &c.socket, &c.node]
            .into_iter()
            .all(is_empty)
    );
    assert_eq!(
        router.read_counters(),
        SockmapCounters {
            delivered: 4,
            denied: 2,
            absent: 0,
            malformed: 0
        }
    );
    assert_eq!(
        [
            router.delivered_records(1, 10),
            router.delivered_records(1, 11),
            router.delivered_records(2, 12)
        ],
        [2, 2, 0]
    );
    a.send(&[record(6, 10)]);
    assert_eq!(
        read_record(&b.socket),
        (6, 10, 1),
        "a denied record does not stop later ones"
    );
}

#[test]
fn a_truncated_record_goes_to_the_node() {
    let router = need_support!(SockmapRouter::create());
    let [mut a, b] = [1, 2].map(|number| Endpoint::new(&router, number));
    router.allow_channel(1, 10, 2).unwrap();
    a.socket
        .write_all(&[&record(0, 10)[..], &record(1, 10)[..7]].concat())
        .unwrap();
    assert_eq!(read_record(&b.socket), (0, 10, 1));
    let mut rest = [0; 7];
    (&a.node).read_exact(&mut rest).unwrap();
    assert_eq!(rest[..], record(1, 10)[..7]);
    a.send(&[record(2, 10)]);
    assert_eq!(
        read_record(&b.socket),
        (2, 10, 1),
        "the next record is complete"
    );
    assert!(is_empty(&b.socket) && is_empty(&a.node));
    assert_eq!(router.read_counters().malformed, 1);
}

#[test]
fn thousands_of_records_arrive_in_order() {
    let router = need_support!(SockmapRouter::create());
    let [mut a, b] = [1, 2].map(|number| Endpoint::new(&router, number));
    router.allow_channel(1, 10, 2).unwrap();
    let sender = std::thread::spawn(move || {
        let batch: Vec<_> = (0..4000u32).map(|n| record(n as u8, 10)).collect();
        a.send(&batch);
        a
    });
    (0..4000u32).for_each(|n| assert_eq!(read_record(&b.socket), (n as u8, 10, 1)));
    drop(sender.join().unwrap());
}

#[test]
fn records_to_a_closed_endpoint_go_to_the_node() {
    let router = need_support!(SockmapRouter::create());
    let [mut a, b] = [1, 2].map(|number| Endpoint::new(&router, number));
    router.allow_channel(1, 10, 2).unwrap();
    drop(b);
    a.send(&[record(0, 10)]);
    assert_eq!(read_record(&a.node), (0, 10, 1));
    assert_eq!(
        (
            router.read_counters().absent,
            router.read_counters().delivered
        ),
        (1, 0)
    );
    // The number is reused; routes are the node's responsibility
    let reused = Endpoint::new(&router, 2);
    a.send(&[record(1, 10)]);
    assert_eq!(read_record(&reused.socket), (1, 10, 1));
    router.revoke_channel(1, 10);
    a.send(&[record(2, 10)]);
    assert_eq!(read_record(&a.node), (2, 10, 1));
    assert_eq!(router.read_counters().denied, 1);
}

#[test]
fn the_node_wakes_and_removes_an_endpoint() {
    let router = need_support!(SockmapRouter::create());
    let [mut a, mut b] = [1, 2].map(|number| Endpoint::new(&router, number));
    router.allow_channel(1, 10, 2).unwrap();
    a.node.write_all(&[0; 32]).unwrap();
    assert_eq!(read_record(&a.socket), (0, 0, 0));
    b.send(&[record(0, 10)]); // denied: the route belongs to a
    assert_eq!(read_record(&b.node), (0, 10, 2));
    router.remove_endpoint(1);
    drop(a.node);
    assert_eq!(a.socket.read(&mut [0; 32]).unwrap(), 0, "end of file");
}

#[test]
fn domains_are_separate() {
    let (one, other) = (
        need_support!(SockmapRouter::create()),
        need_support!(SockmapRouter::create()),
    );
    let (mut a, b) = (Endpoint::new(&one, 1), Endpoint::new(&other, 2));
    other.allow_channel(1, 10, 2).unwrap();
    a.send(&[record(0, 10)]);
    assert_eq!(read_record(&a.node), (0, 10, 1));
    assert!(is_empty(&b.socket));
}

#[test]
fn an_endpoint_socket_cannot_connect_elsewhere() {
    use rustix::net::{SocketFlags, SocketType, connect, connect_unspec, ipproto, socket_with};
    let router = need_support!(SockmapRouter::create());
    // In this machine's namespace
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let own = socket_with(
        rustix::net::AddressFamily::INET,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        Some(ipproto::TCP),
    );
    connect(own.unwrap(), &listener.local_addr().unwrap()).expect("reachable from this namespace");
    let a = Endpoint::new(&router, 1);
    connect_unspec(&a.socket).unwrap();
    connect(&a.socket, &listener.local_addr().unwrap())
        .expect_err("unreachable from the sockets' namespace");
}
