//! Two sites: both sides write first, as punching does.

use std::net::SocketAddr;

use nearpath_testkit::lab::nat::{Family, Internet, Kind, Machine, Pair};
use nearpath_testkit::lab::{Lab, Link};
use nearpath_testkit::need_nat;

use crate::sockets::{accept, dial, listener, port, receive, round_trip, send, udp, until};

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

/// Both dial from the port that the rendezvous saw. The first SYN is dropped, the second meets a machine that dials.
fn tcp_opens_from_both_sides(kinds: [Kind; 2], family: Family) {
    let pair = Lab::pair(kinds[0], kinds[1]).unwrap();
    let place: SocketAddr = (pair.internet.addresses(family)[0], PORT).into();
    let rendezvous = listener(&pair.internet.rendezvous, place);
    let sides = machines(&pair).map(|machine| {
        let (inside, holder) = port(&machine.node, machine.address(family).unwrap());
        let near = dial(&machine.node, inside, place).stream();
        let (far, outside) = accept(&rendezvous);
        (&machine.node, inside, outside, (holder, near, far))
    });
    let dials = [0, 1].map(|side: usize| dial(sides[side].0, sides[side].1, sides[1 - side].2));
    let [first, second] = dials.map(|dial| dial.stream());
    round_trip([&first, &second]).unwrap();
    assert_eq!([first.peer_addr().unwrap(), second.peer_addr().unwrap()], [sides[1].2, sides[0].2]);
}

#[test]
fn tcp_port_restricted_opens_with_port_restricted() {
    need_nat!();
    tcp_opens_from_both_sides([Kind::PortRestricted; 2], Family::V4);
}

#[test]
fn tcp_udp_blocked_opens_with_double_nat() {
    need_nat!();
    tcp_opens_from_both_sides([Kind::UdpBlocked, Kind::Double], Family::V4);
}

#[test]
fn tcp_dual_stack_opens_with_v6_only() {
    need_nat!();
    tcp_opens_from_both_sides([Kind::DualStack, Kind::V6Only], Family::V6);
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
