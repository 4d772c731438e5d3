//! Two sites: both sides write first, as punching does.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::Duration;

use nearpath_testkit::lab::nat::{IpFamily, LabInternet, NatKind, NatPair, NatPlan, SiteMachine};
use nearpath_testkit::lab::{LabNode, LinkConditions, LinkDirection, NetworkLab};
use nearpath_testkit::{need_nat, read_until};
use rustix::io::Errno;

use crate::nat::fixture::NatFixture;
use crate::nat::sockets::{
    PendingDial, accept, dial, listener, port, receive, round_trip, send, udp, until,
};

const PORT: u16 = 4001;

fn machines(pair: &NatPair) -> [&SiteMachine; 2] {
    [pair.first.first_machine(), pair.second.first_machine()]
}

/// Returns true if the first machine's second datagram reaches the other, after the other has sent
/// one.
fn udp_meets(kinds: [NatKind; 2], family: IpFamily) -> bool {
    let pair = NetworkLab::nat_pair(kinds[0], kinds[1]).unwrap();
    let place: SocketAddr = (pair.internet.rendezvous_addresses(family)[0], PORT).into();
    let rendezvous = udp(&pair.internet.rendezvous, place.ip(), PORT);
    let sockets =
        machines(&pair).map(|machine| udp(&machine.node, machine.address_of(family).unwrap(), 0));
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
    assert_eq!(
        second,
        first.iter().map(|_| (1, outside[1])).collect::<Vec<_>>(),
        "one way or both"
    );
    !first.is_empty()
}

#[test]
fn udp_port_restricted_meets_port_restricted() {
    need_nat!();
    assert!(udp_meets([NatKind::PortRestricted; 2], IpFamily::V4));
}

#[test]
fn udp_firewall_meets_double_nat() {
    need_nat!();
    assert!(udp_meets(
        [NatKind::Firewall, NatKind::Double],
        IpFamily::V4
    ));
}

#[test]
fn udp_v6_only_meets_dual_stack() {
    need_nat!();
    assert!(udp_meets(
        [NatKind::V6Only, NatKind::DualStack],
        IpFamily::V6
    ));
}

#[test]
fn udp_symmetric_does_not_meet_port_restricted() {
    need_nat!();
    assert!(!udp_meets(
        [NatKind::Symmetric, NatKind::PortRestricted],
        IpFamily::V4
    ));
}

/// A port of a machine, as the machine and the rendezvous see it.
struct DialSide<'a> {
    node: &'a LabNode,
    inside: SocketAddr,
    outside: SocketAddr,
    /// Keeps the port and its mapping.
    _guard: (OwnedFd, [TcpStream; 2]),
}

fn sides(pair: &NatPair, family: IpFamily) -> [DialSide<'_>; 2] {
    let place: SocketAddr = (pair.internet.rendezvous_addresses(family)[0], PORT).into();
    let rendezvous = listener(&pair.internet.rendezvous, place);
    machines(pair).map(|machine| {
        let (inside, holder) = port(&machine.node, machine.address_of(family).unwrap());
        let near = dial(&machine.node, inside, place).stream();
        let (far, outside) = accept(&rendezvous);
        DialSide {
            node: &machine.node,
            inside,
            outside,
            _guard: (holder, [near, far]),
        }
    })
}

fn dial_each_other([first, second]: &[DialSide<'_>; 2]) -> [PendingDial; 2] {
    [(first, second), (second, first)].map(|(from, to)| dial(from.node, from.inside, to.outside))
}

fn is_one_connection(dials: [PendingDial; 2], sides: &[DialSide<'_>; 2]) {
    let [first, second] = dials.map(PendingDial::stream);
    round_trip([&first, &second]).unwrap();
    assert_eq!(
        [second.peer_addr().unwrap(), first.peer_addr().unwrap()],
        sides.each_ref().map(|side| side.outside)
    );
}

/// Both dial from the port that the rendezvous saw. The first SYN is dropped, or crosses the other
/// one.
fn tcp_opens_from_both_sides(kinds: [NatKind; 2], family: IpFamily, delay: Duration) {
    let [first, second] = kinds.map(|kind| NatPlan {
        conditions: LinkConditions {
            delay,
            ..LinkConditions::default()
        },
        ..kind.into()
    });
    let pair = NetworkLab::nat_pair(first, second).unwrap();
    let sides = sides(&pair, family);
    is_one_connection(dial_each_other(&sides), &sides);
}

#[test]
fn tcp_port_restricted_opens_with_port_restricted() {
    need_nat!();
    tcp_opens_from_both_sides([NatKind::PortRestricted; 2], IpFamily::V4, Duration::ZERO);
}

#[test]
fn tcp_port_restricted_opens_with_port_restricted_far_away() {
    need_nat!();
    tcp_opens_from_both_sides(
        [NatKind::PortRestricted; 2],
        IpFamily::V4,
        Duration::from_millis(20),
    );
}

#[test]
fn tcp_udp_blocked_opens_with_double_nat() {
    need_nat!();
    tcp_opens_from_both_sides(
        [NatKind::UdpBlocked, NatKind::Double],
        IpFamily::V4,
        Duration::ZERO,
    );
}

#[test]
fn tcp_dual_stack_opens_with_v6_only() {
    need_nat!();
    tcp_opens_from_both_sides(
        [NatKind::DualStack, NatKind::V6Only],
        IpFamily::V6,
        Duration::ZERO,
    );
}

/// A RST ends the first dial only; a later one succeeds.
#[test]
fn tcp_port_restricted_that_refuses_opens_when_both_dial_again() {
    need_nat!();
    let conditions = LinkConditions {
        delay: Duration::from_millis(20),
        ..LinkConditions::default()
    };
    let [first, second] = [0; 2].map(|_| NatPlan {
        refuses_packets: true,
        conditions: conditions.clone(),
        ..NatKind::PortRestricted.into()
    });
    let pair = NetworkLab::nat_pair(first, second).unwrap();
    let sides = sides(&pair, IpFamily::V4);
    let early = dial(sides[0].node, sides[0].inside, sides[1].outside);
    assert_eq!(early.ended(), Err(Errno::CONNREFUSED));
    let rounds = (0..50).map(|_| dial_each_other(&sides));
    let met = rounds
        .into_iter()
        .find(|dials| dials.each_ref().map(PendingDial::ended) == [Ok(()); 2]);
    is_one_connection(met.expect("one of fifty rounds meets"), &sides);
}

/// The link of a site applies its plan's conditions and counts packets.
#[test]
fn a_site_loses_packets_as_its_plan_configures() {
    need_nat!();
    let plan = NatPlan {
        conditions: LinkConditions {
            loss: 0.3,
            seed: 1,
            ..LinkConditions::default()
        },
        ..NatKind::PortRestricted.into()
    };
    let fixture = NatFixture::new(plan, IpFamily::V4);
    let place = fixture.observer_addresses()[0];
    let rendezvous = udp(fixture.rendezvous(), place.ip(), place.port());
    let socket = udp(fixture.machine_node(), fixture.inside(), 0);
    (0..100).for_each(|octet| send(&socket, octet, place));
    let line_counts = || {
        fixture
            .site
            .provider_line
            .packet_counts(LinkDirection::Forward)
    };
    let counts = read_until("all are offered", line_counts, |counts| {
        counts.offered >= 100
    });
    assert!(counts.lost > 10, "{counts:?}");
    let arrived: Vec<_> = (0..counts.delivered)
        .map(|_| receive(&rendezvous).0)
        .collect();
    assert!(arrived.is_sorted() && arrived.len() < 90, "{arrived:?}");
}

/// Each kind reaches the rendezvous in the families that it has, and in no other.
#[test]
fn all_kinds_reach_one_rendezvous() {
    need_nat!();
    let mut internet = LabInternet::new(&LinkConditions::default()).unwrap();
    let sites = NatKind::ALL.map(|kind| internet.add_site(kind).unwrap());
    for family in [IpFamily::V4, IpFamily::V6] {
        let place = (internet.rendezvous_addresses(family)[1], PORT).into();
        let rendezvous = listener(&internet.rendezvous, place);
        for site in &sites {
            let address = site.first_machine().address_of(family);
            assert_eq!(
                address.is_some(),
                site.plan.kind.mapping_of(family).is_some(),
                "{:?} {family:?}",
                site.plan.kind
            );
            let Some(address) = address else { continue };
            let (inside, _holder) = port(&site.first_machine().node, address);
            let near = dial(&site.first_machine().node, inside, place).stream();
            round_trip([&near, &accept(&rendezvous).0]).unwrap();
        }
    }
}
