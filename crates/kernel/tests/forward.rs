//! `bpf/tc_forward.c`: every verdict in the kernel's own test run, then over real namespaces.
#![allow(clippy::unwrap_used)]

mod frames;

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use aya::programs::{SchedClassifier, TcAttachType};
use nearpath_kernel::bpf::{Forwarder, Packets};
use nearpath_kernel::namespace::within;
use nearpath_kernel::station::Station;
use nearpath_kernel::switch::Switch;
use nearpath_types::Eip;

use frames::{arp, checksum, datagram, ip, seal, tcp, tcp_checksum};

const NEXT_HOP: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);
const GATEWAY: Eip = Eip(Ipv4Addr::new(10, 62, 0, 1));
const A: Eip = Eip(Ipv4Addr::new(10, 62, 0, 2));
const B: Eip = Eip(Ipv4Addr::new(10, 62, 0, 3));
/// `<linux/pkt_cls.h>`.
const SHOT: u32 = 2;
const REDIRECT: u32 = 7;
const PORT: u16 = 7000;
const PATIENCE: Duration = Duration::from_secs(30);

macro_rules! forwarder {
    () => {{
        nearpath_testkit::need_root!();
        match Forwarder::load() {
            Ok(forwarder) => forwarder,
            // Only what is not there is passed over: a program that the kernel refuses is a fault.
            Err(why) if matches!(why.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied) => {
                nearpath_testkit::skip!("no BPF here: {why}")
            }
            Err(why) => panic!("{why}"),
        }
    }};
}

/// Test runs come in by the device with index 1: here it is A's. The gateway is at another namespace's.
fn judged_as_a(forwarder: &Forwarder) {
    let switch = Switch::create(NEXT_HOP).unwrap();
    forwarder.attach(&switch, A, "lo").unwrap();
    let gateway = Station::create(&switch, GATEWAY, "gw", NEXT_HOP).unwrap();
    forwarder.attach(&switch, gateway.eip(), gateway.device()).unwrap();
    forwarder.allow(GATEWAY, A).unwrap();
}

#[test]
fn what_is_allowed_is_forwarded_with_new_macs_and_a_shorter_life() {
    let forwarder = forwarder!();
    judged_as_a(&forwarder);
    for ttl in [2, 64, 255] {
        let sent = ip(A, GATEWAY, ttl);
        let (verdict, frame) = forwarder.judge(&sent).unwrap();
        assert_eq!(verdict, REDIRECT);
        assert_eq!(frame[..6], [0x06, 0x4e, 10, 62, 0, 1], "to the gateway's own end");
        assert_eq!(frame[6..12], [0x02, 0x4e, 10, 62, 0, 1], "from the switch's end of its pair");
        assert_eq!(frame[22], ttl - 1);
        assert_eq!(checksum(&frame[14..34]), 0, "the header's checksum holds");
        assert_eq!((&frame[26..], &frame[12..22]), (&sent[26..], &sent[12..22]), "all else is as it was");
    }
    let carried = forwarder.carried(A, GATEWAY);
    assert_eq!((carried.packets, forwarder.carried(GATEWAY, A).packets), (3, 0));
    assert_eq!(forwarder.packets(), Packets { forwarded: 3, ..Packets::default() });
}

/// The checksum is that of a header written anew, whatever it was before.
#[test]
fn the_checksum_holds_for_every_header() {
    let forwarder = forwarder!();
    judged_as_a(&forwarder);
    for id in 0..=u16::MAX {
        let mut sent = ip(A, GATEWAY, 64);
        sent[18..20].copy_from_slice(&id.to_be_bytes());
        frames::seal(&mut sent);
        let (_, frame) = forwarder.judge(&sent).unwrap();
        sent[22] -= 1;
        frames::seal(&mut sent);
        assert_eq!(frame[14..34], sent[14..34], "identification {id}");
    }
}

#[test]
fn what_is_not_allowed_goes_nowhere() {
    let forwarder = forwarder!();
    judged_as_a(&forwarder);
    let shot = |frame: &[u8]| {
        let before = forwarder.packets();
        let (verdict, after) = forwarder.judge(frame).unwrap();
        assert_eq!((verdict, &after[..]), (SHOT, frame));
        let now = forwarder.packets();
        [
            now.denied - before.denied,
            now.forged - before.forged,
            now.foreign - before.foreign,
            now.expired - before.expired,
        ]
    };
    let [denied, forged, foreign, expired] = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]];
    assert_eq!(shot(&ip(A, B, 64)), denied, "nobody allowed that");
    assert_eq!(shot(&ip(A, Eip(Ipv4Addr::BROADCAST), 64)), denied);
    assert_eq!(shot(&ip(B, GATEWAY, 64)), forged, "another's address");
    assert_eq!(shot(&ip(GATEWAY, A, 64)), forged, "also when that one may");
    assert_eq!(shot(&ip(A, GATEWAY, 1)), expired);
    assert_eq!(shot(&ip(A, GATEWAY, 0)), expired);
    // An IPv4 header that is cut short cannot be tried: the test run refuses it (EINVAL). Short ARP can, below.
    for first in [0x44, 0x65, 0x55] {
        let mut odd = ip(A, GATEWAY, 64);
        odd[14] = first; // a header too short, another version
        assert_eq!(shot(&odd), foreign);
    }
    for kind in [[0x86, 0xdd], [0x81, 0x00], [0x88, 0x47], [0x00, 0x2e]] {
        let mut odd = ip(A, GATEWAY, 64);
        odd[12..14].copy_from_slice(&kind); // IPv6, a VLAN, MPLS, a length
        assert_eq!(shot(&odd), foreign);
    }
    assert_eq!(forwarder.packets().forwarded, 0);
    assert_eq!(forwarder.judge(&ip(A, GATEWAY, 64)).unwrap().0, REDIRECT, "the control");
}

#[test]
fn who_asks_for_a_connection_that_is_denied_is_told_so() {
    let forwarder = forwarder!();
    judged_as_a(&forwarder);
    let (verdict, frame) = forwarder.judge(&tcp(A, B, 0x02)).unwrap();
    assert_eq!((verdict, frame.len()), (REDIRECT, 54), "back, without the options");
    assert_eq!(
        frame[..12],
        [0x06, 0x4e, 10, 62, 0, 2, 0x02, 0x4e, 10, 62, 0, 2],
        "to A, from the switch's end of its pair"
    );
    assert_eq!((&frame[26..30], &frame[30..34]), (&B.0.octets()[..], &A.0.octets()[..]));
    assert_eq!((&frame[34..38], &frame[38..46]), (&[0x22, 0x22, 0x11, 0x11][..], &[0, 0, 0, 0, 1, 2, 3, 5][..]));
    assert_eq!((frame[46], frame[47]), (0x50, 0x14), "a reset that acknowledges");
    assert_eq!((&frame[16..18], checksum(&frame[14..34]), tcp_checksum(&frame)), (&[0, 40][..], 0, 0));
    assert_eq!(forwarder.packets(), Packets { denied: 1, ..Packets::default() });
    let mut fragment = tcp(A, B, 0x02);
    fragment[20] = 0x20;
    seal(&mut fragment);
    let mut udp = tcp(A, B, 0x02);
    udp[23] = 17;
    for other in [tcp(A, B, 0x12), tcp(A, B, 0x10), tcp(A, B, 0x04), tcp(A, B, 0x03), fragment, udp] {
        assert_eq!(forwarder.judge(&other).unwrap().0, SHOT, "nobody asked");
    }
    assert_eq!(forwarder.judge(&tcp(B, A, 0x02)).unwrap().0, SHOT, "a forger is told nothing");
    assert_eq!(forwarder.packets(), Packets { denied: 7, forged: 1, ..Packets::default() });
    assert_eq!(
        forwarder.judge(&tcp(A, GATEWAY, 0x02)).unwrap(),
        {
            let mut frame = tcp(A, GATEWAY, 0x02);
            frame[..12].copy_from_slice(&[0x06, 0x4e, 10, 62, 0, 1, 0x02, 0x4e, 10, 62, 0, 1]);
            frame[22] -= 1;
            seal(&mut frame);
            (REDIRECT, frame)
        },
        "the control"
    );
}

/// Two instances whose watchdogs call each other reach nothing else of each other.
#[test]
fn between_instances_only_the_datagrams_of_watchdogs_pass() {
    let forwarder = forwarder!();
    judged_as_a(&forwarder);
    let switch = Switch::create(NEXT_HOP).unwrap();
    let b = Station::create(&switch, B, "b", NEXT_HOP).unwrap();
    forwarder.attach(&switch, b.eip(), b.device()).unwrap();
    let verdict = |frame: &[u8]| forwarder.judge(frame).unwrap().0;
    let asked = datagram(A, B, (8080, 8080));
    assert_eq!(verdict(&asked), SHOT, "nobody allowed that");
    forwarder.allow_datagrams(A, B, 8080).unwrap();
    assert_eq!(verdict(&asked), REDIRECT);
    for ports in [(8080, 53), (53, 8080), (0x901f, 8080)] {
        assert_eq!(verdict(&datagram(A, B, ports)), SHOT, "{ports:?}");
    }
    let mut part = asked.clone();
    part[20] = 0x20;
    seal(&mut part);
    let mut options = asked.clone();
    options[14] = 0x46;
    for other in [part, options, ip(A, B, 64), tcp(A, B, 0x10), datagram(B, A, (8080, 8080))] {
        assert_eq!(verdict(&other), SHOT);
    }
    let (refused, frame) = forwarder.judge(&tcp(A, B, 0x02)).unwrap();
    assert_eq!((refused, frame[47]), (REDIRECT, 0x14), "a reset, back to who asked for a connection");
    forwarder.allow_datagrams(B, A, 8080).unwrap();
    forwarder.forbid(A, B);
    assert_eq!(verdict(&asked), REDIRECT, "the other of the two still wants it");
    forwarder.forbid(B, A);
    assert_eq!(verdict(&asked), SHOT);
    assert_eq!(verdict(&datagram(A, GATEWAY, (1, 2))), REDIRECT, "the control");
}

/// A gateway that does not know yet of an instance's end does not wait for it.
#[test]
fn a_connection_to_nobody_is_refused_at_once() {
    let forwarder = forwarder!();
    let net = Net::new();
    net.attach(&forwarder);
    let _listener = listen(&net.a);
    assert_eq!(connect(&net.gateway, &net.a).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    forwarder.allow(GATEWAY, A).unwrap();
    connect(&net.gateway, &net.a).unwrap();
    forwarder.detach(A);
    assert_eq!(connect(&net.gateway, &net.a).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    assert!(forwarder.packets().denied >= 2);
}

#[test]
fn arp_is_answered_for_everybody_but_oneself() {
    let forwarder = forwarder!();
    judged_as_a(&forwarder);
    let (verdict, frame) = forwarder.judge(&arp(1, A, NEXT_HOP)).unwrap();
    let (near, far) = ([0x02, 0x4e, 10, 62, 0, 2], [0x06, 0x4e, 10, 62, 0, 2]);
    assert_eq!((verdict, &frame[..6], &frame[6..12]), (REDIRECT, &far[..], &near[..]));
    assert_eq!(frame[20..22], [0, 2], "a reply");
    assert_eq!((&frame[22..28], &frame[28..32]), (&near[..], &NEXT_HOP.octets()[..]));
    assert_eq!((&frame[32..38], &frame[38..42]), (&far[..], &A.0.octets()[..]));
    for forged in [arp(1, B, NEXT_HOP), arp(1, Eip(Ipv4Addr::UNSPECIFIED), A.0), arp(1, A, A.0)] {
        assert_eq!(forwarder.judge(&forged).unwrap().0, SHOT);
    }
    let mut token_ring = arp(1, A, NEXT_HOP);
    token_ring[15] = 6;
    for foreign in [arp(2, A, NEXT_HOP), token_ring, arp(1, A, NEXT_HOP)[..41].to_vec()] {
        assert_eq!(forwarder.judge(&foreign).unwrap().0, SHOT);
    }
    assert_eq!(forwarder.packets(), Packets { answered: 1, forged: 3, foreign: 3, ..Packets::default() });
}

#[test]
fn who_leaves_is_a_stranger_and_permissions_stay() {
    let forwarder = forwarder!();
    judged_as_a(&forwarder);
    let verdict = || forwarder.judge(&ip(A, GATEWAY, 64)).unwrap().0;
    forwarder.detach(GATEWAY);
    assert_eq!(verdict(), SHOT);
    let switch = Switch::create(NEXT_HOP).unwrap();
    let again = Station::create(&switch, GATEWAY, "gw", NEXT_HOP).unwrap();
    forwarder.attach(&switch, GATEWAY, again.device()).unwrap();
    assert_eq!(verdict(), REDIRECT);
    forwarder.forbid(A, GATEWAY);
    assert_eq!(verdict(), SHOT);
    forwarder.allow(A, GATEWAY).unwrap();
    assert_eq!(verdict(), REDIRECT);
    forwarder.detach(A);
    assert_eq!(verdict(), SHOT);
    assert_eq!(forwarder.packets(), Packets { forwarded: 2, denied: 2, forged: 1, ..Packets::default() });
    forwarder.attach(&switch, A, "nobody").unwrap_err();
}

/// A switch with a gateway and two instances.
struct Net {
    switch: Switch,
    gateway: Station,
    a: Station,
    b: Station,
}

impl Net {
    fn new() -> Self {
        let switch = Switch::create(NEXT_HOP).unwrap();
        let station = |eip, device| Station::create(&switch, eip, device, NEXT_HOP).unwrap();
        let (gateway, a, b) = (station(GATEWAY, "gw"), station(A, "a"), station(B, "b"));
        Self { switch, gateway, a, b }
    }

    fn attach(&self, forwarder: &Forwarder) {
        for station in [&self.gateway, &self.a, &self.b] {
            forwarder.attach(&self.switch, station.eip(), station.device()).unwrap();
        }
    }
}

fn listen(at: &Station) -> TcpListener {
    within(at, || TcpListener::bind((at.eip().0, PORT))).unwrap()
}

fn connect(from: &Station, to: &Station) -> std::io::Result<TcpStream> {
    let stream = within(from, || TcpStream::connect_timeout(&SocketAddrV4::new(to.eip().0, PORT).into(), PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn udp(at: &Station) -> UdpSocket {
    let socket = within(at, || UdpSocket::bind((at.eip().0, PORT))).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Waits until the forwarder has counted it.
fn counted(forwarder: &Forwarder, what: impl Fn(Packets) -> bool) {
    let start = Instant::now();
    while !what(forwarder.packets()) {
        assert!(start.elapsed() < PATIENCE, "{:?}", forwarder.packets());
        std::thread::yield_now();
    }
}

#[test]
fn a_gateway_talks_to_instances_from_a_namespace_of_its_own() {
    let forwarder = forwarder!();
    let net = Net::new();
    net.attach(&forwarder);
    forwarder.allow(GATEWAY, A).unwrap();
    let listener = listen(&net.a);
    let mut caller = connect(&net.gateway, &net.a).unwrap();
    let (mut callee, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), GATEWAY.0, "nobody translates addresses");
    let sent: Vec<u8> = (0..8_000_000_u32).map(|n| (n % 251) as u8).collect(); // as segments of up to 64 KB
    let sender = sent.clone();
    let writing = std::thread::spawn(move || caller.write_all(&sender).map(|()| caller));
    let mut received = vec![0; sent.len()];
    callee.set_read_timeout(Some(PATIENCE)).unwrap();
    callee.read_exact(&mut received).unwrap();
    assert!(received == sent);
    let mut caller = writing.join().unwrap().unwrap();
    callee.write_all(b"thanks").unwrap();
    caller.read_exact(&mut received[..6]).unwrap();
    assert_eq!(&received[..6], b"thanks");
    let (there, back) = (forwarder.carried(GATEWAY, A), forwarder.carried(A, GATEWAY));
    assert!(there.bytes > 8_000_000 && back.packets > 1, "{there:?} {back:?}");
    assert_eq!(forwarder.packets().forwarded, there.packets + back.packets);
    assert!(forwarder.packets().answered >= 2, "both asked for their next hop");
}

#[test]
fn instances_do_not_talk_unless_they_may() {
    let forwarder = forwarder!();
    let net = Net::new();
    let (a, b) = (udp(&net.a), udp(&net.b));
    net.attach(&forwarder);
    a.send_to(b"no", (B.0, PORT)).unwrap();
    counted(&forwarder, |packets| packets.denied == 1);
    forwarder.allow(A, B).unwrap();
    a.send_to(b"yes", (B.0, PORT)).unwrap();
    let mut buffer = [0; 9];
    assert_eq!(b.recv_from(&mut buffer).unwrap(), (3, (A.0, PORT).into()));
    assert_eq!(&buffer[..3], b"yes", "and the first one never came");
    forwarder.forbid(A, B);
    a.send_to(b"no", (B.0, PORT)).unwrap();
    counted(&forwarder, |packets| packets.denied == 2);
}

#[test]
fn an_address_of_another_is_of_no_use() {
    let forwarder = forwarder!();
    let net = Net::new();
    net.attach(&forwarder);
    forwarder.allow(GATEWAY, A).unwrap();
    forwarder.allow(GATEWAY, B).unwrap();
    let also_a = within(&net.b, || Command::new("ip").args(["addr", "add", "10.62.0.2/32", "dev", "lo"]).status());
    match also_a {
        Ok(status) => assert!(status.success()),
        Err(why) => nearpath_testkit::skip!("ip(8): {why}"),
    }
    let gateway = udp(&net.gateway);
    let liar = within(&net.b, || UdpSocket::bind((A.0, PORT))).unwrap();
    liar.send_to(b"from a", (GATEWAY.0, PORT)).unwrap();
    counted(&forwarder, |packets| packets.forged >= 1);
    udp(&net.b).send_to(b"from b", (GATEWAY.0, PORT)).unwrap();
    let mut buffer = [0; 9];
    assert_eq!(gateway.recv_from(&mut buffer).unwrap(), (6, (B.0, PORT).into()), "only the honest one came");
}

/// Without the program the switch forwards nothing: what is left after a killed forwarder is as closed as before.
#[test]
fn a_killed_forwarder_leaves_nothing_behind() {
    drop(forwarder!());
    let net = Net::new();
    let attached = |device: &str| {
        within(&net.switch, || SchedClassifier::query_tcx(device, TcAttachType::Ingress).map_err(std::io::Error::other))
            .unwrap()
            .1
            .len()
    };
    let test = std::env::current_exe().unwrap();
    let mut command = Command::new(test.ancestors().nth(2).unwrap().join("examples/forwarder"));
    command.args([GATEWAY.to_string().as_str(), "gw", A.to_string().as_str(), "a"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut node = within(&net.switch, || command.spawn()).unwrap();
    let mut line = String::new();
    BufReader::new(node.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let _listener = listen(&net.a);
    assert_eq!((line.trim(), attached("gw"), attached("a")), ("up", 1, 1));
    connect(&net.gateway, &net.a).unwrap();
    node.kill().unwrap();
    node.wait().unwrap();
    assert_eq!((attached("gw"), attached("a")), (0, 0));
    let to = SocketAddrV4::new(A.0, PORT).into();
    let error = within(&net.gateway, || TcpStream::connect_timeout(&to, Duration::from_millis(300))).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable));
}
