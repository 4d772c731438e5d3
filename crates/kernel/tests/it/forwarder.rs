//! `bpf/tc_forward.c`: every verdict in the kernel's test run, then over real namespaces.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use aya::programs::{SchedClassifier, TcAttachType};
use nearpath_kernel::attached_netns::AttachedNetns;
use nearpath_kernel::bpf::{Forwarder, PacketCounters};
use nearpath_kernel::hub_netns::HubNetns;
use nearpath_kernel::namespace::run_in_netns;
use nearpath_types::Eip;

use crate::frames::{
    arp_message, checksum, ipv4_packet, tcp_checksum, tcp_segment, udp_datagram, write_checksum,
};

const NEXT_HOP: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 1);
const GATEWAY: Eip = Eip(Ipv4Addr::new(10, 62, 0, 1));
const A: Eip = Eip(Ipv4Addr::new(10, 62, 0, 2));
const B: Eip = Eip(Ipv4Addr::new(10, 62, 0, 3));
/// Verdicts of `<linux/pkt_cls.h>`.
const SHOT: u32 = 2;
const REDIRECT: u32 = 7;
const PORT: u16 = 7000;
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

macro_rules! forwarder {
    () => {{
        nearpath_testkit::need_root!();
        match Forwarder::load_program() {
            Ok(forwarder) => forwarder,
            // Only missing support is skipped: a program that the kernel rejects is a failure.
            Err(why)
                if matches!(
                    why.kind(),
                    ErrorKind::Unsupported | ErrorKind::PermissionDenied
                ) =>
            {
                nearpath_testkit::skip!("BPF is unavailable: {why}")
            }
            Err(why) => panic!("{why}"),
        }
    }};
}

/// Attaches A to the device with index 1, by which test frames arrive, and the gateway to another
/// namespace.
fn attach_a_and_gateway(forwarder: &Forwarder) {
    let hub = HubNetns::create(NEXT_HOP).unwrap();
    forwarder.attach_device(&hub, A, "lo").unwrap();
    let gateway = AttachedNetns::create(&hub, GATEWAY, "gw", NEXT_HOP).unwrap();
    forwarder
        .attach_device(&hub, gateway.eip(), gateway.device())
        .unwrap();
    forwarder.allow_pair(GATEWAY, A).unwrap();
}

#[test]
fn an_allowed_packet_is_forwarded_with_new_macs_and_ttl() {
    let forwarder = forwarder!();
    attach_a_and_gateway(&forwarder);
    for ttl in [2, 64, 255] {
        let sent = ipv4_packet(A, GATEWAY, ttl);
        let (verdict, frame) = forwarder.test_run(&sent).unwrap();
        assert_eq!(verdict, REDIRECT);
        assert_eq!(
            frame[..6],
            [0x06, 0x4e, 10, 62, 0, 1],
            "to the gateway's inner end"
        );
        assert_eq!(
            frame[6..12],
            [0x02, 0x4e, 10, 62, 0, 1],
            "from the hub's end of its pair"
        );
        assert_eq!(frame[22], ttl - 1);
        assert_eq!(checksum(&frame[14..34]), 0, "the header's checksum holds");
        assert_eq!(
            (&frame[26..], &frame[12..22]),
            (&sent[26..], &sent[12..22]),
            "the rest is unchanged"
        );
    }
    let carried = forwarder.pair_counters(A, GATEWAY);
    assert_eq!(
        (carried.packets, forwarder.pair_counters(GATEWAY, A).packets),
        (3, 0)
    );
    assert_eq!(
        forwarder.packet_counters(),
        PacketCounters {
            forwarded: 3,
            ..PacketCounters::default()
        }
    );
}

/// The incremental checksum equals that of a header built anew.
#[test]
fn the_checksum_holds_for_every_header() {
    let forwarder = forwarder!();
    attach_a_and_gateway(&forwarder);
    for id in 0..=u16::MAX {
        let mut sent = ipv4_packet(A, GATEWAY, 64);
        sent[18..20].copy_from_slice(&id.to_be_bytes());
        write_checksum(&mut sent);
        let (_, frame) = forwarder.test_run(&sent).unwrap();
        sent[22] -= 1;
        write_checksum(&mut sent);
        assert_eq!(frame[14..34], sent[14..34], "identification {id}");
    }
}

#[test]
fn packets_that_are_not_allowed_are_dropped() {
    let forwarder = forwarder!();
    attach_a_and_gateway(&forwarder);
    let shot = |frame: &[u8]| {
        let before = forwarder.packet_counters();
        let (verdict, after) = forwarder.test_run(frame).unwrap();
        assert_eq!((verdict, &after[..]), (SHOT, frame));
        let now = forwarder.packet_counters();
        [
            now.denied - before.denied,
            now.forged_source - before.forged_source,
            now.unsupported - before.unsupported,
            now.ttl_expired - before.ttl_expired,
        ]
    };
    let [denied, forged, foreign, expired] =
        [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]];
    assert_eq!(shot(&ipv4_packet(A, B, 64)), denied, "no permission");
    assert_eq!(shot(&ipv4_packet(A, Eip(Ipv4Addr::BROADCAST), 64)), denied);
    assert_eq!(
        shot(&ipv4_packet(B, GATEWAY, 64)),
        forged,
        "another device's address"
    );
    assert_eq!(
        shot(&ipv4_packet(GATEWAY, A, 64)),
        forged,
        "even if that device has permission"
    );
    assert_eq!(shot(&ipv4_packet(A, GATEWAY, 1)), expired);
    assert_eq!(shot(&ipv4_packet(A, GATEWAY, 0)), expired);
    // A truncated IPv4 header cannot be tried: the test run rejects it (EINVAL). Truncated ARP is
    // tested below.
    for first in [0x44, 0x65, 0x55] {
        let mut invalid = ipv4_packet(A, GATEWAY, 64);
        invalid[14] = first; // a header too short, and other versions
        assert_eq!(shot(&invalid), foreign);
    }
    for kind in [[0x86, 0xdd], [0x81, 0x00], [0x88, 0x47], [0x00, 0x2e]] {
        let mut invalid = ipv4_packet(A, GATEWAY, 64);
        invalid[12..14].copy_from_slice(&kind); // IPv6, a VLAN, MPLS, a length
        assert_eq!(shot(&invalid), foreign);
    }
    assert_eq!(forwarder.packet_counters().forwarded, 0);
    assert_eq!(
        forwarder.test_run(&ipv4_packet(A, GATEWAY, 64)).unwrap().0,
        REDIRECT,
        "an allowed packet still passes"
    );
}

#[test]
#[expect(
    clippy::too_many_lines,
    reason = "a table of cases, or one conversation from begin to end"
)]
fn a_denied_connection_request_is_reset() {
    let forwarder = forwarder!();
    attach_a_and_gateway(&forwarder);
    let (verdict, frame) = forwarder.test_run(&tcp_segment(A, B, 0x02)).unwrap();
    assert_eq!(
        (verdict, frame.len()),
        (REDIRECT, 54),
        "sent back without options"
    );
    assert_eq!(
        frame[..12],
        [0x06, 0x4e, 10, 62, 0, 2, 0x02, 0x4e, 10, 62, 0, 2],
        "to A, from the hub's end of its pair"
    );
    assert_eq!(
        (&frame[26..30], &frame[30..34]),
        (&B.0.octets()[..], &A.0.octets()[..])
    );
    assert_eq!(
        (&frame[34..38], &frame[38..46]),
        (&[0x22, 0x22, 0x11, 0x11][..], &[0, 0, 0, 0, 1, 2, 3, 5][..])
    );
    assert_eq!(
        (frame[46], frame[47]),
        (0x50, 0x14),
        "a reset that acknowledges"
    );
    assert_eq!(
        (
            &frame[16..18],
            checksum(&frame[14..34]),
            tcp_checksum(&frame)
        ),
        (&[0, 40][..], 0, 0)
    );
    assert_eq!(
        forwarder.packet_counters(),
        PacketCounters {
            denied: 1,
            ..PacketCounters::default()
        }
    );
    let mut fragment = tcp_segment(A, B, 0x02);
    fragment[20] = 0x20;
    write_checksum(&mut fragment);
    let mut udp = tcp_segment(A, B, 0x02);
    udp[23] = 17;
    for other in [
        tcp_segment(A, B, 0x12),
        tcp_segment(A, B, 0x10),
        tcp_segment(A, B, 0x04),
        tcp_segment(A, B, 0x03),
        fragment,
        udp,
    ] {
        assert_eq!(
            forwarder.test_run(&other).unwrap().0,
            SHOT,
            "not a connection request"
        );
    }
    assert_eq!(
        forwarder.test_run(&tcp_segment(B, A, 0x02)).unwrap().0,
        SHOT,
        "a forged source gets no answer"
    );
    assert_eq!(
        forwarder.packet_counters(),
        PacketCounters {
            denied: 7,
            forged_source: 1,
            ..PacketCounters::default()
        }
    );
    assert_eq!(
        forwarder.test_run(&tcp_segment(A, GATEWAY, 0x02)).unwrap(),
        {
            let mut frame = tcp_segment(A, GATEWAY, 0x02);
            frame[..12].copy_from_slice(&[0x06, 0x4e, 10, 62, 0, 1, 0x02, 0x4e, 10, 62, 0, 1]);
            frame[22] -= 1;
            write_checksum(&mut frame);
            (REDIRECT, frame)
        },
        "an allowed packet still passes"
    );
}

/// Instances whose watchdogs call each other reach nothing else of each other.
#[test]
fn instances_exchange_only_watchdog_datagrams() {
    let forwarder = forwarder!();
    attach_a_and_gateway(&forwarder);
    let hub = HubNetns::create(NEXT_HOP).unwrap();
    let b = AttachedNetns::create(&hub, B, "b", NEXT_HOP).unwrap();
    forwarder.attach_device(&hub, b.eip(), b.device()).unwrap();
    let verdict = |frame: &[u8]| forwarder.test_run(frame).unwrap().0;
    let datagram_8080 = udp_datagram(A, B, (8080, 8080));
    assert_eq!(verdict(&datagram_8080), SHOT, "no permission");
    forwarder.allow_udp_port(A, B, 8080).unwrap();
    assert_eq!(verdict(&datagram_8080), REDIRECT);
    for ports in [(8080, 53), (53, 8080), (0x901f, 8080)] {
        assert_eq!(verdict(&udp_datagram(A, B, ports)), SHOT, "{ports:?}");
    }
    let mut part = datagram_8080.clone();
    part[20] = 0x20;
    write_checksum(&mut part);
    let mut options = datagram_8080.clone();
    options[14] = 0x46;
    for other in [
        part,
        options,
        ipv4_packet(A, B, 64),
        tcp_segment(A, B, 0x10),
        udp_datagram(B, A, (8080, 8080)),
    ] {
        assert_eq!(verdict(&other), SHOT);
    }
    let (refused, frame) = forwarder.test_run(&tcp_segment(A, B, 0x02)).unwrap();
    assert_eq!(
        (refused, frame[47]),
        (REDIRECT, 0x14),
        "a reset to the requester"
    );
    forwarder.allow_udp_port(B, A, 8080).unwrap();
    forwarder.forbid_pair(A, B);
    assert_eq!(
        verdict(&datagram_8080),
        REDIRECT,
        "the second request still holds"
    );
    forwarder.forbid_pair(B, A);
    assert_eq!(verdict(&datagram_8080), SHOT);
    assert_eq!(
        verdict(&udp_datagram(A, GATEWAY, (1, 2))),
        REDIRECT,
        "an allowed packet still passes"
    );
}

/// A gateway that still knows a dead instance gets an error at once.
#[test]
fn a_connection_to_an_absent_address_is_refused_at_once() {
    let forwarder = forwarder!();
    let net = TestNet::new();
    net.attach(&forwarder);
    let _listener = listen_at(&net.a);
    assert_eq!(
        connect_to(&net.gateway, &net.a).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    forwarder.allow_pair(GATEWAY, A).unwrap();
    connect_to(&net.gateway, &net.a).unwrap();
    forwarder.detach_device(A);
    assert_eq!(
        connect_to(&net.gateway, &net.a).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    assert!(forwarder.packet_counters().denied >= 2);
}

#[test]
fn arp_is_answered_except_for_the_own_address() {
    let forwarder = forwarder!();
    attach_a_and_gateway(&forwarder);
    let (verdict, frame) = forwarder.test_run(&arp_message(1, A, NEXT_HOP)).unwrap();
    let (near, far) = ([0x02, 0x4e, 10, 62, 0, 2], [0x06, 0x4e, 10, 62, 0, 2]);
    assert_eq!(
        (verdict, &frame[..6], &frame[6..12]),
        (REDIRECT, &far[..], &near[..])
    );
    assert_eq!(frame[20..22], [0, 2], "a reply");
    assert_eq!(
        (&frame[22..28], &frame[28..32]),
        (&near[..], &NEXT_HOP.octets()[..])
    );
    assert_eq!(
        (&frame[32..38], &frame[38..42]),
        (&far[..], &A.0.octets()[..])
    );
    for forged in [
        arp_message(1, B, NEXT_HOP),
        arp_message(1, Eip(Ipv4Addr::UNSPECIFIED), A.0),
        arp_message(1, A, A.0),
    ] {
        assert_eq!(forwarder.test_run(&forged).unwrap().0, SHOT);
    }
    let mut other_hardware = arp_message(1, A, NEXT_HOP);
    other_hardware[15] = 6;
    for foreign in [
        arp_message(2, A, NEXT_HOP),
        other_hardware,
        arp_message(1, A, NEXT_HOP)[..41].to_vec(),
    ] {
        assert_eq!(forwarder.test_run(&foreign).unwrap().0, SHOT);
    }
    assert_eq!(
        forwarder.packet_counters(),
        PacketCounters {
            arp_replies: 1,
            forged_source: 3,
            unsupported: 3,
            ..PacketCounters::default()
        }
    );
}

#[test]
fn a_detached_device_is_unknown_and_permissions_stay() {
    let forwarder = forwarder!();
    attach_a_and_gateway(&forwarder);
    let verdict = || forwarder.test_run(&ipv4_packet(A, GATEWAY, 64)).unwrap().0;
    forwarder.detach_device(GATEWAY);
    assert_eq!(verdict(), SHOT);
    let hub = HubNetns::create(NEXT_HOP).unwrap();
    let again = AttachedNetns::create(&hub, GATEWAY, "gw", NEXT_HOP).unwrap();
    forwarder
        .attach_device(&hub, GATEWAY, again.device())
        .unwrap();
    assert_eq!(verdict(), REDIRECT);
    forwarder.forbid_pair(A, GATEWAY);
    assert_eq!(verdict(), SHOT);
    forwarder.allow_pair(A, GATEWAY).unwrap();
    assert_eq!(verdict(), REDIRECT);
    forwarder.detach_device(A);
    assert_eq!(verdict(), SHOT);
    assert_eq!(
        forwarder.packet_counters(),
        PacketCounters {
            forwarded: 2,
            denied: 2,
            forged_source: 1,
            ..PacketCounters::default()
        }
    );
    forwarder.attach_device(&hub, A, "nobody").unwrap_err();
}

/// A hub with a gateway and two instances.
struct TestNet {
    hub: HubNetns,
    gateway: AttachedNetns,
    a: AttachedNetns,
    b: AttachedNetns,
}

impl TestNet {
    fn new() -> Self {
        let hub = HubNetns::create(NEXT_HOP).unwrap();
        let netns = |eip, device| AttachedNetns::create(&hub, eip, device, NEXT_HOP).unwrap();
        let (gateway, a, b) = (netns(GATEWAY, "gw"), netns(A, "a"), netns(B, "b"));
        Self { hub, gateway, a, b }
    }

    fn attach(&self, forwarder: &Forwarder) {
        for netns in [&self.gateway, &self.a, &self.b] {
            forwarder
                .attach_device(&self.hub, netns.eip(), netns.device())
                .unwrap();
        }
    }
}

fn listen_at(at: &AttachedNetns) -> TcpListener {
    run_in_netns(at, || TcpListener::bind((at.eip().0, PORT))).unwrap()
}

fn connect_to(from: &AttachedNetns, to: &AttachedNetns) -> std::io::Result<TcpStream> {
    let stream = run_in_netns(from, || {
        TcpStream::connect_timeout(&SocketAddrV4::new(to.eip().0, PORT).into(), TEST_TIMEOUT)
    })?;
    stream.set_read_timeout(Some(TEST_TIMEOUT))?;
    Ok(stream)
}

fn bind_udp(at: &AttachedNetns) -> UdpSocket {
    let socket = run_in_netns(at, || UdpSocket::bind((at.eip().0, PORT))).unwrap();
    socket.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    socket
}

/// Waits until the forwarder's counters match.
fn wait_counted(forwarder: &Forwarder, what: impl Fn(PacketCounters) -> bool) {
    let counters = || forwarder.packet_counters();
    nearpath_testkit::read_until("the packets are counted", counters, |packets| {
        what(*packets)
    });
}

#[test]
fn a_gateway_in_its_own_namespace_reaches_instances() {
    let forwarder = forwarder!();
    let net = TestNet::new();
    net.attach(&forwarder);
    forwarder.allow_pair(GATEWAY, A).unwrap();
    let listener = listen_at(&net.a);
    let mut caller = connect_to(&net.gateway, &net.a).unwrap();
    let (mut callee, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), GATEWAY.0, "addresses are not translated");
    // As segments of up to 64 KB
    let sent: Vec<u8> = (0..8_000_000_u32).map(|n| (n % 251) as u8).collect();
    let sender = sent.clone();
    let writing = std::thread::spawn(move || caller.write_all(&sender).map(|()| caller));
    let mut received = vec![0; sent.len()];
    callee.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    callee.read_exact(&mut received).unwrap();
    assert!(received == sent);
    let mut caller = writing.join().unwrap().unwrap();
    callee.write_all(b"thanks").unwrap();
    caller.read_exact(&mut received[..6]).unwrap();
    assert_eq!(&received[..6], b"thanks");
    let (outgoing, incoming) = (
        forwarder.pair_counters(GATEWAY, A),
        forwarder.pair_counters(A, GATEWAY),
    );
    assert!(
        outgoing.bytes > 8_000_000 && incoming.packets > 1,
        "{outgoing:?} {incoming:?}"
    );
    assert_eq!(
        forwarder.packet_counters().forwarded,
        outgoing.packets + incoming.packets
    );
    // Both have a permanent entry of their next hop.
    assert_eq!(forwarder.packet_counters().arp_replies, 0);
}

#[test]
fn instances_communicate_only_when_allowed() {
    let forwarder = forwarder!();
    let net = TestNet::new();
    let (a, b) = (bind_udp(&net.a), bind_udp(&net.b));
    net.attach(&forwarder);
    a.send_to(b"no", (B.0, PORT)).unwrap();
    wait_counted(&forwarder, |packets| packets.denied == 1);
    forwarder.allow_pair(A, B).unwrap();
    a.send_to(b"yes", (B.0, PORT)).unwrap();
    let mut buffer = [0; 9];
    assert_eq!(b.recv_from(&mut buffer).unwrap(), (3, (A.0, PORT).into()));
    assert_eq!(&buffer[..3], b"yes", "the denied datagram was dropped");
    forwarder.forbid_pair(A, B);
    a.send_to(b"no", (B.0, PORT)).unwrap();
    wait_counted(&forwarder, |packets| packets.denied == 2);
}

#[test]
fn a_forged_source_is_dropped() {
    let forwarder = forwarder!();
    let net = TestNet::new();
    net.attach(&forwarder);
    forwarder.allow_pair(GATEWAY, A).unwrap();
    forwarder.allow_pair(GATEWAY, B).unwrap();
    let also_a = run_in_netns(&net.b, || {
        Command::new("ip")
            .args(["addr", "add", "10.62.0.2/32", "dev", "lo"])
            .status()
    });
    match also_a {
        Ok(status) => assert!(status.success()),
        Err(why) => nearpath_testkit::skip!("ip(8): {why}"),
    }
    let gateway = bind_udp(&net.gateway);
    let forger = run_in_netns(&net.b, || UdpSocket::bind((A.0, PORT))).unwrap();
    forger.send_to(b"from a", (GATEWAY.0, PORT)).unwrap();
    wait_counted(&forwarder, |packets| packets.forged_source >= 1);
    bind_udp(&net.b)
        .send_to(b"from b", (GATEWAY.0, PORT))
        .unwrap();
    let mut buffer = [0; 9];
    assert_eq!(
        gateway.recv_from(&mut buffer).unwrap(),
        (6, (B.0, PORT).into()),
        "only the datagram with its own source arrived"
    );
}

/// Without the program the hub forwards nothing: after a killed forwarder it is closed again.
#[test]
fn a_killed_forwarder_leaves_nothing_behind() {
    drop(forwarder!());
    let net = TestNet::new();
    let attached = |device: &str| {
        run_in_netns(&net.hub, || {
            SchedClassifier::query_tcx(device, TcAttachType::Ingress).map_err(std::io::Error::other)
        })
        .unwrap()
        .1
        .len()
    };
    let test = std::env::current_exe().unwrap();
    let mut command = Command::new(test.ancestors().nth(2).unwrap().join("examples/forwarder"));
    command.args([
        GATEWAY.to_string().as_str(),
        "gw",
        A.to_string().as_str(),
        "a",
    ]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut node = run_in_netns(&net.hub, || command.spawn()).unwrap();
    let mut line = String::new();
    BufReader::new(node.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let _listener = listen_at(&net.a);
    assert_eq!((line.trim(), attached("gw"), attached("a")), ("up", 1, 1));
    connect_to(&net.gateway, &net.a).unwrap();
    node.kill().unwrap();
    node.wait().unwrap();
    assert_eq!((attached("gw"), attached("a")), (0, 0));
    let to = SocketAddrV4::new(A.0, PORT).into();
    let error = run_in_netns(&net.gateway, || {
        TcpStream::connect_timeout(&to, Duration::from_millis(300))
    })
    .unwrap_err();
    assert!(matches!(
        error.kind(),
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
    ));
}
