//! `bpf/sk_msg.c` over real sockets: the kernel has no test run for this kind of program.
#![allow(clippy::unwrap_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nearpath_kernel::bpf::{Counts, Exchange};

/// A party's end and the node's.
struct Party {
    socket: TcpStream,
    node: TcpStream,
}

impl Party {
    fn new(exchange: &Exchange, number: u16) -> Self {
        let seat = exchange.seat(number).unwrap();
        let (socket, node) = (TcpStream::from(seat.party), TcpStream::from(seat.node));
        for stream in [&socket, &node] {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        }
        Self { socket, node }
    }

    fn send(&mut self, records: &[[u8; 32]]) {
        self.socket.write_all(&records.concat()).unwrap();
    }
}

fn record(number: u8, channel: u32) -> [u8; 32] {
    let mut record = [0xee; 32]; // also where the kernel writes the sender
    record[0] = number;
    record[16..20].copy_from_slice(&channel.to_le_bytes());
    record
}

/// Number, channel and sender of the next record.
fn next(mut from: &TcpStream) -> (u8, u32, u32) {
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

macro_rules! exchange {
    () => {
        match Exchange::create() {
            Ok(exchange) => exchange,
            // Only what is not there is passed over: a program that the kernel refuses is a fault.
            Err(why) if matches!(why.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) => {
                nearpath_testkit::skip!("no BPF here: {why}")
            }
            Err(why) => panic!("{why}"),
        }
    };
}

#[test]
fn one_send_each_record_by_its_own_right() {
    let exchange = exchange!();
    let [mut a, b, c] = [1, 2, 3].map(|number| Party::new(&exchange, number));
    exchange.permit(1, 10, 2).unwrap();
    exchange.permit(1, 11, 3).unwrap();
    exchange.permit(2, 12, 3).unwrap();
    // To b, to c, by another's right, to b, on no channel at all, to c: the order within each receiver stays.
    a.send(&[record(0, 10), record(1, 11), record(2, 12), record(3, 10), record(4, 99), record(5, 11)]);
    assert_eq!([next(&b.socket), next(&b.socket)], [(0, 10, 1), (3, 10, 1)], "the sender is who the kernel says");
    assert_eq!([next(&c.socket), next(&c.socket)], [(1, 11, 1), (5, 11, 1)]);
    assert_eq!([next(&a.node), next(&a.node)], [(2, 12, 1), (4, 99, 1)], "the node reads what may not be sent");
    assert!([&a.socket, &a.node, &b.socket, &b.node, &c.socket, &c.node].into_iter().all(is_empty));
    assert_eq!(exchange.counts(), Counts { delivered: 4, denied: 2, absent: 0, malformed: 0 });
    assert_eq!([exchange.carried(1, 10), exchange.carried(1, 11), exchange.carried(2, 12)], [2, 2, 0]);
    a.send(&[record(6, 10)]);
    assert_eq!(next(&b.socket), (6, 10, 1), "a denied record does not stop those after it");
}

#[test]
fn half_a_record_reaches_nobody() {
    let exchange = exchange!();
    let [mut a, b] = [1, 2].map(|number| Party::new(&exchange, number));
    exchange.permit(1, 10, 2).unwrap();
    a.socket.write_all(&[&record(0, 10)[..], &record(1, 10)[..7]].concat()).unwrap();
    assert_eq!(next(&b.socket), (0, 10, 1));
    let mut rest = [0; 7];
    (&a.node).read_exact(&mut rest).unwrap();
    assert_eq!(rest[..], record(1, 10)[..7]);
    a.send(&[record(2, 10)]);
    assert_eq!(next(&b.socket), (2, 10, 1), "what came after is whole");
    assert!(is_empty(&b.socket) && is_empty(&a.node));
    assert_eq!(exchange.counts().malformed, 1);
}

#[test]
fn thousands_at_once_arrive_in_order() {
    let exchange = exchange!();
    let [mut a, b] = [1, 2].map(|number| Party::new(&exchange, number));
    exchange.permit(1, 10, 2).unwrap();
    let sender = std::thread::spawn(move || {
        let batch: Vec<_> = (0..4000u32).map(|n| record(n as u8, 10)).collect();
        a.send(&batch);
        a
    });
    (0..4000u32).for_each(|n| assert_eq!(next(&b.socket), (n as u8, 10, 1)));
    drop(sender.join().unwrap());
}

#[test]
fn what_goes_to_the_dead_goes_to_the_node() {
    let exchange = exchange!();
    let [mut a, b] = [1, 2].map(|number| Party::new(&exchange, number));
    exchange.permit(1, 10, 2).unwrap();
    drop(b);
    a.send(&[record(0, 10)]);
    assert_eq!(next(&a.node), (0, 10, 1));
    assert_eq!((exchange.counts().absent, exchange.counts().delivered), (1, 0));
    let again = Party::new(&exchange, 2); // the number is given again: the row is the node's business
    a.send(&[record(1, 10)]);
    assert_eq!(next(&again.socket), (1, 10, 1));
    exchange.revoke(1, 10);
    a.send(&[record(2, 10)]);
    assert_eq!(next(&a.node), (2, 10, 1));
    assert_eq!(exchange.counts().denied, 1);
}

#[test]
fn the_node_wakes_a_party_and_cuts_it_off() {
    let exchange = exchange!();
    let [mut a, mut b] = [1, 2].map(|number| Party::new(&exchange, number));
    exchange.permit(1, 10, 2).unwrap();
    a.node.write_all(&[0; 32]).unwrap();
    assert_eq!(next(&a.socket), (0, 0, 0));
    b.send(&[record(0, 10)]); // b may not: the row is a's
    assert_eq!(next(&b.node), (0, 10, 2));
    exchange.unseat(1);
    drop(a.node);
    assert_eq!(a.socket.read(&mut [0; 32]).unwrap(), 0, "end of file");
}

#[test]
fn domains_do_not_meet() {
    let (one, other) = (exchange!(), exchange!());
    let (mut a, b) = (Party::new(&one, 1), Party::new(&other, 2));
    other.permit(1, 10, 2).unwrap();
    a.send(&[record(0, 10)]);
    assert_eq!(next(&a.node), (0, 10, 1));
    assert!(is_empty(&b.socket));
}

#[test]
fn a_party_that_connects_elsewhere_finds_nobody() {
    use rustix::net::{SocketFlags, SocketType, connect, connect_unspec, ipproto, socket_with};
    let exchange = exchange!();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap(); // of this machine's namespace
    let own =
        socket_with(rustix::net::AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP));
    connect(own.unwrap(), &listener.local_addr().unwrap()).expect("from here it is there");
    let a = Party::new(&exchange, 1);
    connect_unspec(&a.socket).unwrap();
    connect(&a.socket, &listener.local_addr().unwrap()).expect_err("but not from the exchange's namespace");
}
