//! Two sites: both sides write first, as punching does.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use nearpath_testkit::lab::nat::{Family, Internet, Kind, Machine, Pair, Plan};
use nearpath_testkit::lab::{Direction, Lab, Link, Node};
use nearpath_testkit::need_nat;
use rustix::io::Errno;

use crate::nat::scene::Scene;
use crate::nat::sockets::{DEADLINE, Dial, accept, dial, listener, port, receive, round_trip, send, udp, until};

const PORT: u16 = 4001;

fn machines(pair: &Pair) -> [&Machine; 2] {
    [pair.first.machine(), pair.second.machine()]
}

/// Whether the first machine's second datagram reaches the other, after the other's to it.
fn udp_meets(kinds: [Kind; 2], family: Family) -> bool {
    let pair = Lab::pair(kinds[0], kinds[1]).unwrap();
    let place: SocketAddr = (pair.internet.addresses(family)[0], PORT).into();
    let rendezvous = udp(&pair.internet.rendezvous, place.ip(), PORT);
    let sockets = machines(&pair).map(|machine| udp(&machine.node, machine.address(family).unwrap(), 0));
    let outside = sockets.each_ref().map(|socket| {
        send(socket, 0, place);
        receive(&rendezvous).1
    });
    let write = |from: usize| {
        send(&sockets[from], 1, outside[1 - from]);
        send(&sockets[from], 0, place);
        receive(&rendezvous);
        send(&rendezvous, 9, outside[1 - from]);
        until(&sockets[1 - from], 9)
    };
    write(0);
    let [second, first] = [write(1), write(0)];
    assert_eq!(second, first.iter().map(|_| (1, outside[1])).collect::<Vec<_>>(), "one way or both");
    !first.is_empty()
}

#[test]
fn udp_port_restricted_meets_port_restricted() {
    need_nat!();
    assert!(udp_meets([Kind::PortRestricted; 2], Family::V4));
}

#[test]
fn udp_firewall_meets_double_nat() {
    need_nat!();
    assert!(udp_meets([Kind::Firewall, Kind::Double], Family::V4));
}

#[test]
fn udp_v6_only_meets_dual_stack() {
    need_nat!();
    assert!(udp_meets([Kind::V6Only, Kind::DualStack], Family::V6));
}

#[test]
fn udp_symmetric_does_not_meet_port_restricted() {
    need_nat!();
    assert!(!udp_meets([Kind::Symmetric, Kind::PortRestricted], Family::V4));
}

/// A port of a machine, as it and the rendezvous see it.
struct Side<'a> {
    node: &'a Node,
    inside: SocketAddr,
    outside: SocketAddr,
    /// What keeps the port and its mapping.
    _kept: (OwnedFd, [TcpStream; 2]),
}

fn sides(pair: &Pair, family: Family) -> [Side<'_>; 2] {
    let place: SocketAddr = (pair.internet.addresses(family)[0], PORT).into();
    let rendezvous = listener(&pair.internet.rendezvous, place);
    machines(pair).map(|machine| {
        let (inside, holder) = port(&machine.node, machine.address(family).unwrap());
        let near = dial(&machine.node, inside, place).stream();
        let (far, outside) = accept(&rendezvous);
        Side { node: &machine.node, inside, outside, _kept: (holder, [near, far]) }
    })
}

fn dial_each_other([first, second]: &[Side<'_>; 2]) -> [Dial; 2] {
    [(first, second), (second, first)].map(|(from, to)| dial(from.node, from.inside, to.outside))
}

fn is_one_connection(dials: [Dial; 2], sides: &[Side<'_>; 2]) {
    let [first, second] = dials.map(Dial::stream);
    round_trip([&first, &second]).unwrap();
    assert_eq!([second.peer_addr().unwrap(), first.peer_addr().unwrap()], sides.each_ref().map(|side| side.outside));
}

/// Both dial from the port that the rendezvous saw. The first SYN is dropped, or it meets the other on its way.
fn tcp_opens_from_both_sides(kinds: [Kind; 2], family: Family, delay: Duration) {
    let [first, second] = kinds.map(|kind| Plan { line: Link { delay, ..Link::default() }, ..kind.into() });
    let pair = Lab::pair(first, second).unwrap();
    let sides = sides(&pair, family);
    is_one_connection(dial_each_other(&sides), &sides);
}

#[test]
fn tcp_port_restricted_opens_with_port_restricted() {
    need_nat!();
    tcp_opens_from_both_sides([Kind::PortRestricted; 2], Family::V4, Duration::ZERO);
}

#[test]
fn tcp_port_restricted_opens_with_port_restricted_far_away() {
    need_nat!();
    tcp_opens_from_both_sides([Kind::PortRestricted; 2], Family::V4, Duration::from_millis(20));
}

#[test]
fn tcp_udp_blocked_opens_with_double_nat() {
    need_nat!();
    tcp_opens_from_both_sides([Kind::UdpBlocked, Kind::Double], Family::V4, Duration::ZERO);
}

#[test]
fn tcp_dual_stack_opens_with_v6_only() {
    need_nat!();
    tcp_opens_from_both_sides([Kind::DualStack, Kind::V6Only], Family::V6, Duration::ZERO);
}

/// A RST ends the dial of who came first, not what they can do later.
#[test]
fn tcp_port_restricted_that_refuses_opens_when_both_dial_again() {
    need_nat!();
    let line = Link { delay: Duration::from_millis(20), ..Link::default() };
    let [first, second] = [0; 2].map(|_| Plan { refuses: true, line: line.clone(), ..Kind::PortRestricted.into() });
    let pair = Lab::pair(first, second).unwrap();
    let sides = sides(&pair, Family::V4);
    let early = dial(sides[0].node, sides[0].inside, sides[1].outside);
    assert_eq!(early.ended(), Err(Errno::CONNREFUSED));
    let rounds = (0..50).map(|_| dial_each_other(&sides));
    let met = rounds.into_iter().find(|dials| dials.each_ref().map(Dial::ended) == [Ok(()); 2]);
    is_one_connection(met.expect("one of fifty rounds meets"), &sides);
}

/// The line of a plan does to packets what its link says, and its cable counts them.
#[test]
fn a_line_loses_what_its_plan_says() {
    need_nat!();
    let plan = Plan { line: Link { loss: 0.3, seed: 1, ..Link::default() }, ..Kind::PortRestricted.into() };
    let scene = Scene::new(plan, Family::V4);
    let place = scene.places()[0];
    let rendezvous = udp(scene.rendezvous(), place.ip(), place.port());
    let socket = udp(scene.machine(), scene.inside(), 0);
    (0..100).for_each(|octet| send(&socket, octet, place));
    let line = || scene.site.line.counts(Direction::There);
    let begun = Instant::now();
    while line().offered < 100 {
        assert!(begun.elapsed() < DEADLINE, "{:?}", line());
        std::thread::sleep(Duration::from_millis(1));
    }
    let counts = line();
    assert!(counts.lost > 10, "{counts:?}");
    let arrived: Vec<_> = (0..counts.delivered).map(|_| receive(&rendezvous).0).collect();
    assert!(arrived.is_sorted() && arrived.len() < 90, "{arrived:?}");
}

/// Every kind on one internet: each reaches the rendezvous in the families that it has, and no other.
#[test]
fn all_kinds_reach_one_rendezvous() {
    need_nat!();
    let mut internet = Internet::new(&Link::default()).unwrap();
    let sites = Kind::ALL.map(|kind| internet.site(kind).unwrap());
    for family in [Family::V4, Family::V6] {
        let place = (internet.addresses(family)[1], PORT).into();
        let rendezvous = listener(&internet.rendezvous, place);
        for site in &sites {
            let address = site.machine().address(family);
            assert_eq!(address.is_some(), site.plan.kind.mapping(family).is_some(), "{:?} {family:?}", site.plan.kind);
            let Some(address) = address else { continue };
            let (inside, _holder) = port(&site.machine().node, address);
            let near = dial(&site.machine().node, inside, place).stream();
            round_trip([&near, &accept(&rendezvous).0]).unwrap();
        }
    }
}
