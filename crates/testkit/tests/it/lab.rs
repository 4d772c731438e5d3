//! The lab on the real kernel. Times are not asserted, except that a delay is a minimum.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nearpath_testkit::lab::{
    LabLink, LabNode, LinkConditions, LinkCounts, LinkDirection, LinkEnd, NetworkLab,
};
use nearpath_testkit::{need_root, read_until};

/// Time after which a test that waits for a packet fails.
const DEADLINE: Duration = Duration::from_secs(20);
const MS: Duration = Duration::from_millis(1);

/// Two nodes and the link between them.
struct LabPair {
    near: LabNode,
    far: LabNode,
    link: LabLink,
    _lab: NetworkLab,
}

impl LabPair {
    fn new(link: LinkConditions) -> Self {
        let mut lab = NetworkLab::new().unwrap();
        let (near, far) = (lab.add_node("near").unwrap(), lab.add_node("far").unwrap());
        let link = lab.connect_nodes(&near, &far, &link).unwrap();
        Self {
            near,
            far,
            link,
            _lab: lab,
        }
    }

    /// Two sockets that send to each other; reads have a timeout.
    fn udp_sockets(&self, address: fn(&LinkEnd) -> IpAddr) -> [UdpSocket; 2] {
        let [near, far] = [self.link.first_end(), self.link.second_end()].map(|end| {
            let socket = end
                .node
                .enter(|| UdpSocket::bind((address(end), 0)))
                .unwrap();
            socket.set_read_timeout(Some(DEADLINE)).unwrap();
            socket
        });
        near.connect(far.local_addr().unwrap()).unwrap();
        far.connect(near.local_addr().unwrap()).unwrap();
        [near, far]
    }

    fn there(&self) -> LinkCounts {
        self.link.packet_counts(LinkDirection::Forward)
    }

    fn until(&self, enough: impl Fn(&LinkCounts) -> bool) -> LinkCounts {
        until(&self.link, enough)
    }
}

/// Waits until the forward counters satisfy `enough`.
fn until(lab_link: &LabLink, enough: impl Fn(&LinkCounts) -> bool) -> LinkCounts {
    let counts = || lab_link.packet_counts(LinkDirection::Forward);
    read_until("the packets are counted", counts, enough)
}

fn v4(end: &LinkEnd) -> IpAddr {
    end.v4.into()
}

fn v6(end: &LinkEnd) -> IpAddr {
    end.v6.into()
}

/// Sends numbers 0 to `count`, each a datagram.
fn send(socket: &UdpSocket, count: u32) {
    (0..count).for_each(|number| assert_eq!(socket.send(&number.to_le_bytes()).unwrap(), 4));
}

fn receive(socket: &UdpSocket, count: u64) -> Vec<u32> {
    let mut packet = [0; 4];
    let mut next = || {
        assert_eq!(
            socket
                .recv(&mut packet)
                .expect("a packet within the deadline"),
            4
        );
        u32::from_le_bytes(packet)
    };
    (0..count).map(|_| next()).collect()
}

/// Sends a datagram and its response, and returns the time of both.
fn round_trip([near, far]: &[UdpSocket; 2]) -> Duration {
    let start = Instant::now();
    send(near, 1);
    receive(far, 1);
    send(far, 1);
    receive(near, 1);
    start.elapsed()
}

#[test]
fn packets_get_through_by_both_protocols_and_no_others_are_there() {
    need_root!();
    let pair = LabPair::new(LinkConditions {
        delay: MS,
        ..LinkConditions::default()
    });
    round_trip(&pair.udp_sockets(v4));
    round_trip(&pair.udp_sockets(v6));
    for direction in [LinkDirection::Forward, LinkDirection::Backward] {
        let counts = pair.link.packet_counts(direction);
        assert_eq!((counts.offered, counts.delivered), (2, 2), "{direction:?}");
    }
    assert_eq!(
        (
            pair.link.refused_packets(),
            pair.link.overrun_packets().unwrap()
        ),
        (0, 0)
    );
}

/// Nothing else is sent: no neighbour discovery, no announcement.
#[test]
fn a_plain_link_carries_both_protocols_and_nothing_else() {
    need_root!();
    let pair = LabPair::new(LinkConditions::plain());
    round_trip(&pair.udp_sockets(v4));
    round_trip(&pair.udp_sockets(v6));
    let devices = pair
        .far
        .enter(|| std::fs::read_to_string("/proc/thread-self/net/dev"))
        .unwrap();
    let row = devices
        .lines()
        .find(|line| line.trim_start().starts_with("link0:"))
        .unwrap();
    let columns: Vec<_> = row.split_ascii_whitespace().collect();
    assert_eq!((columns[2], columns[10]), ("2", "2"), "{devices}");
}

#[test]
fn programs_see_the_network_of_their_node() {
    need_root!();
    let pair = LabPair::new(LinkConditions::default());
    let out = pair
        .near
        .run_program(Command::new("cat").arg("/proc/self/net/dev"))
        .unwrap();
    let devices = String::from_utf8(out.stdout).unwrap();
    assert!(
        out.status.success() && devices.contains("link0:") && !devices.contains("eth0:"),
        "{devices}"
    );
}

#[test]
fn the_delay_is_never_undercut() {
    need_root!();
    let pair = LabPair::new(LinkConditions {
        delay: MS * 3,
        ..LinkConditions::default()
    });
    let sockets = pair.udp_sockets(v4);
    assert!(round_trip(&sockets) >= MS * 6);
    pair.link
        .set_one_direction(
            LinkDirection::Backward,
            &LinkConditions {
                delay: MS * 40,
                jitter: MS,
                ..LinkConditions::default()
            },
        )
        .unwrap();
    assert!(round_trip(&sockets) >= MS * 43, "one direction was changed");
    pair.link
        .set_conditions(&LinkConditions::default())
        .unwrap();
    let quickest = (0..20).map(|_| round_trip(&sockets)).min().unwrap();
    assert!(
        quickest < MS * 43,
        "the delay stayed although it was taken away"
    );
}

#[test]
fn a_link_that_loses_all_delivers_nothing() {
    need_root!();
    let pair = LabPair::new(LinkConditions {
        loss: 1.0,
        ..LinkConditions::default()
    });
    send(&pair.udp_sockets(v4)[0], 50);
    let counts = pair.until(|c| c.offered == 50);
    assert_eq!((counts.lost, counts.delivered), (50, 0));
}

#[test]
fn a_seed_loses_and_doubles_the_same_packets_again() {
    need_root!();
    let run = |seed, delay| {
        let pair = LabPair::new(LinkConditions {
            loss: 0.3,
            duplicate: 0.2,
            seed,
            delay,
            ..LinkConditions::default()
        });
        let [near, far] = pair.udp_sockets(v4);
        send(&near, 100);
        let counts = pair.until(|c| c.offered == 100 && c.underway == 0);
        assert!(counts.lost > 0 && counts.duplicated > 0);
        receive(&far, counts.delivered)
    };
    let first = run(1, Duration::ZERO);
    assert_eq!(first, run(1, MS));
    assert_ne!(first, run(2, MS));
}

#[test]
fn packets_that_are_held_back_are_overtaken() {
    need_root!();
    let late = Duration::from_millis(300);
    let pair = LabPair::new(LinkConditions {
        reorder: 0.1,
        late,
        seed: 5,
        ..LinkConditions::default()
    });
    let [near, far] = pair.udp_sockets(v4);
    send(&near, 200);
    let mut numbers = receive(&far, 200);
    assert!(pair.there().late > 0);
    assert!(
        !numbers.is_sorted(),
        "{} were late, and not one was overtaken",
        pair.there().late
    );
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..200));
}

#[test]
fn the_rate_holds_packets_in_a_queue_that_is_bounded() {
    need_root!();
    // 8 bit/s: the first datagram is still being sent when the test ends.
    let pair = LabPair::new(LinkConditions {
        rate: Some(8),
        queue_bytes: 320,
        ..LinkConditions::default()
    });
    send(&pair.udp_sockets(v4)[0], 100);
    let counts = pair.until(|c| c.offered == 100);
    assert_eq!(
        (counts.underway, counts.delivered),
        (10, 0),
        "ten packets of 20 + 8 + 4 octets make 320"
    );
    assert_eq!(counts.overflowed, 90);
}

#[test]
fn a_cut_link_loses_what_is_underway_and_can_be_restored() {
    need_root!();
    let pair = LabPair::new(LinkConditions {
        delay: DEADLINE * 2,
        ..LinkConditions::default()
    });
    let sockets = pair.udp_sockets(v4);
    send(&sockets[0], 3);
    pair.until(|c| c.underway == 3);
    pair.link.cut_link();
    send(&sockets[0], 4);
    let counts = pair.until(|c| c.offered == 7);
    assert_eq!((counts.cut, counts.underway, counts.delivered), (7, 0, 0));
    pair.link
        .set_conditions(&LinkConditions::default())
        .unwrap();
    pair.link.restore_link();
    round_trip(&sockets);
}

#[test]
fn bulk_arrives_whole_in_large_pieces_and_through_a_bad_link() {
    need_root!();
    let bad = LinkConditions {
        delay: MS,
        loss: 0.01,
        duplicate: 0.02,
        reorder: 0.05,
        ..LinkConditions::default()
    };
    let whole = transfer(
        LinkConditions {
            mtu: 1500,
            ..LinkConditions::default()
        },
        8_000_000,
        v4,
    );
    assert!(
        whole.delivered < 8_000_000 / 1448,
        "segments went one by one: {whole:?}"
    );
    transfer(
        LinkConditions {
            mtu: 9000,
            delay: MS,
            ..LinkConditions::default()
        },
        8_000_000,
        v6,
    );
    let bad = transfer(bad, 1_000_000, v6);
    assert!(
        bad.lost > 0 && bad.late > 0 && bad.duplicated > 0,
        "{bad:?}"
    );
}

/// Sends a pattern over TCP, compares it at the other end, and returns the link's counters.
fn transfer(link: LinkConditions, octets: usize, address: fn(&LinkEnd) -> IpAddr) -> LinkCounts {
    let pair = LabPair::new(link);
    let pattern: Vec<u8> = (0..octets).map(|n| (n % 251) as u8).collect();
    let listener = pair
        .far
        .enter(|| TcpListener::bind((address(pair.link.second_end()), 0)))
        .unwrap();
    let mut sender = pair
        .near
        .enter(|| TcpStream::connect(listener.local_addr().unwrap()))
        .unwrap();
    let (mut receiver, _) = listener.accept().unwrap();
    receiver.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut received = Vec::new();
    thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(&pattern).unwrap();
            drop(sender);
        });
        receiver.read_to_end(&mut received).unwrap();
    });
    assert!(
        received == pattern,
        "{} octets, or other ones",
        received.len()
    );
    pair.there()
}

#[test]
fn the_mtu_is_that_of_the_link_and_can_be_a_hole() {
    need_root!();
    let pair = LabPair::new(LinkConditions {
        mtu: 9000,
        largest_packet: Some(1280),
        ..LinkConditions::default()
    });
    let [near, far] = pair.udp_sockets(v6);
    forbid_fragments(&near);
    near.send(&[0; 9000 - 48]).unwrap();
    near.send(&[0; 1281 - 48]).unwrap();
    assert_eq!(
        near.send(&[0; 9001 - 48]).unwrap_err().raw_os_error(),
        Some(MESSAGE_TOO_LONG)
    );
    let counts = pair.until(|c| c.offered == 2);
    assert_eq!(counts.swallowed, 2);
    near.send(&[0; 1280 - 48]).unwrap();
    assert_eq!(far.recv(&mut [0; 9000]).unwrap(), 1280 - 48);
}

const MESSAGE_TOO_LONG: i32 = 90;

fn forbid_fragments(socket: &UdpSocket) {
    nix::sys::socket::setsockopt(socket, nix::sys::socket::sockopt::Ipv6DontFrag, &true).unwrap();
}

#[test]
fn marks_of_congestion_stay() {
    need_root!();
    let pair = LabPair::new(LinkConditions {
        delay: MS,
        ..LinkConditions::default()
    });
    let [near, far] = pair.udp_sockets(v4);
    rustix::net::sockopt::set_ip_tos(&near, 0b01).unwrap(); // ECT(1), RFC 3168
    nix::sys::socket::setsockopt(&far, nix::sys::socket::sockopt::IpRecvTos, &true).unwrap();
    send(&near, 1);
    assert_eq!(tos_of_the_next(&far), Some(0b01));
}

fn tos_of_the_next(socket: &UdpSocket) -> Option<u8> {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    use std::os::fd::AsRawFd;
    let (mut packet, mut space) = ([0; 64], nix::cmsg_space!(u8));
    let mut buffers = [io::IoSliceMut::new(&mut packet)];
    let message = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut buffers,
        Some(&mut space),
        MsgFlags::empty(),
    )
    .unwrap();
    message.cmsgs().unwrap().find_map(|note| match note {
        ControlMessageOwned::Ipv4Tos(tos) => Some(tos),
        _ => None,
    })
}

#[test]
fn a_node_between_two_links_is_a_router() {
    need_root!();
    let mut lab = NetworkLab::new().unwrap();
    let [near, middle, far] = ["near", "middle", "far"].map(|name| lab.add_node(name).unwrap());
    let first = lab
        .connect_nodes(&near, &middle, &LinkConditions::default())
        .unwrap();
    let second = lab
        .connect_nodes(
            &middle,
            &far,
            &LinkConditions {
                delay: MS,
                ..LinkConditions::default()
            },
        )
        .unwrap();
    let all = (Ipv4Addr::new(10, 77, 0, 0).into(), 16);
    near.add_route(
        all,
        Some(first.second_end().v4.into()),
        &first.first_end().device,
    )
    .unwrap();
    far.add_route(
        all,
        Some(second.first_end().v4.into()),
        &second.second_end().device,
    )
    .unwrap();
    let sender = near
        .enter(|| UdpSocket::bind((first.first_end().v4, 0)))
        .unwrap();
    let receiver = far
        .enter(|| UdpSocket::bind((second.second_end().v4, 0)))
        .unwrap();
    receiver.set_read_timeout(Some(DEADLINE)).unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    send(&sender, 1);
    until(&first, |c| c.delivered == 1);
    assert_eq!(
        second.packet_counts(LinkDirection::Forward).offered,
        0,
        "the middle node forwards nothing before forwarding is enabled"
    );
    middle.enable_forwarding().unwrap();
    send(&sender, 1);
    receive(&receiver, 1);
    assert_eq!(second.packet_counts(LinkDirection::Forward).delivered, 1);
}

#[test]
fn nodes_reach_nothing_but_what_they_are_linked_to() {
    need_root!();
    let outside = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let pair = LabPair::new(LinkConditions::default());
    let refused = pair
        .near
        .enter(|| TcpStream::connect(outside.local_addr().unwrap()))
        .unwrap_err();
    assert_eq!(
        refused.kind(),
        io::ErrorKind::ConnectionRefused,
        "loopback is the node's own"
    );
    let away = pair
        .near
        .enter(|| TcpStream::connect(("192.0.2.1", 80)))
        .unwrap_err();
    assert_eq!(away.kind(), io::ErrorKind::NetworkUnreachable);
}
