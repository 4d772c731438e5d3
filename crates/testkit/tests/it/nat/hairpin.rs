//! Packets between machines of one site by their outside addresses.

use nearpath_testkit::lab::LabNode;
use nearpath_testkit::lab::nat::{IpFamily, NatKind, NatPlan};

use crate::nat::fixture::NatFixture;
use crate::nat::sockets::{accept, dial, listener, port, receive, round_trip, send, udp, until};

/// A fixture with a second machine, and that machine.
fn hairpin_fixture(
    kind: NatKind,
    family: IpFamily,
    hairpin: bool,
) -> (NatFixture, LabNode, std::net::IpAddr) {
    let mut fixture = NatFixture::new(
        NatPlan {
            hairpin,
            ..kind.into()
        },
        family,
    );
    let other = fixture
        .internet
        .add_machine(&mut fixture.site)
        .unwrap()
        .clone();
    let address = other.address_of(family).unwrap();
    (fixture, other.node, address)
}

fn udp_passes(kind: NatKind, family: IpFamily, hairpin: bool) {
    let (fixture, node, address) = hairpin_fixture(kind, family, hairpin);
    let place = fixture.observer_addresses()[0];
    let rendezvous = udp(fixture.rendezvous(), place.ip(), place.port());
    let sockets = [
        udp(fixture.machine_node(), fixture.inside(), 0),
        udp(&node, address, 0),
    ];
    let outside = sockets.each_ref().map(|socket| {
        send(socket, 0, place);
        receive(&rendezvous).1
    });
    let barrier = |from: usize, to: usize| {
        send(&sockets[from], 0, place);
        receive(&rendezvous);
        send(&rendezvous, 9, outside[to]);
        until(&sockets[to], 9)
    };
    // The second machine sends first: the routers on the way may accept only responses.
    send(&sockets[1], 1, outside[0]);
    barrier(1, 0);
    send(&sockets[0], 2, outside[1]);
    let got = barrier(0, 1);
    let from = if kind == NatKind::Symmetric {
        got.first().map(|got| got.1)
    } else {
        Some(outside[0])
    };
    let expected: Vec<_> = from
        .filter(|_| hairpin)
        .map(|from| (2, from))
        .into_iter()
        .collect();
    assert_eq!(got, expected);
    assert!(
        expected
            .iter()
            .all(|(_, from)| from.ip() == outside[0].ip()),
        "it comes from outside (RFC 4787, REQ-9)"
    );
    assert_eq!(expected.len(), usize::from(hairpin));
}

fn tcp_passes(kind: NatKind, family: IpFamily, hairpin: bool) {
    let (fixture, node, address) = hairpin_fixture(kind, family, hairpin);
    let place = fixture.observer_addresses()[0];
    let rendezvous = listener(fixture.rendezvous(), place);
    let (from, _holder) = port(fixture.machine_node(), fixture.inside());
    let (to, _other_holder) = port(&node, address);
    let there = listener(&node, to);
    let near = dial(fixture.machine_node(), from, place).stream();
    let near_far = accept(&rendezvous);
    let other = dial(&node, to, place).stream();
    let other_far = accept(&rendezvous);
    let knock = dial(fixture.machine_node(), from, other_far.1);
    // The SYN passes, then its response, then the machine's answer to that.
    round_trip([&near, &near_far.0]).unwrap();
    round_trip([&other_far.0, &other]).unwrap();
    round_trip([&near_far.0, &near]).unwrap();
    assert_eq!(knock.now(), hairpin.then_some(Ok(())));
    if hairpin {
        let seen = accept(&there).1;
        assert_eq!(seen.ip(), near_far.1.ip(), "it comes from outside");
        assert!(seen == near_far.1 || kind == NatKind::Symmetric);
    }
}

mod with {
    mod udp {
        use super::super::*;
        crate::nat::for_each_kind!(check; full_cone: FullCone V4, restricted: Restricted V4, port_restricted: PortRestricted V4,
            symmetric: Symmetric V4, double_nat: Double V4, dual_stack_v4: DualStack V4);

        fn check(kind: NatKind, family: IpFamily) {
            udp_passes(kind, family, true);
        }
    }

    mod tcp {
        use super::super::*;
        // Not a double NAT: its inner router correctly accepts only responses.
        crate::nat::for_each_kind!(check; full_cone: FullCone V4, restricted: Restricted V4, port_restricted: PortRestricted V4,
            symmetric: Symmetric V4, udp_blocked: UdpBlocked V4, dual_stack_v4: DualStack V4);

        fn check(kind: NatKind, family: IpFamily) {
            tcp_passes(kind, family, true);
        }
    }
}

mod without {
    mod udp {
        use super::super::*;
        crate::nat::for_each_kind!(check; full_cone: FullCone V4, restricted: Restricted V4, port_restricted: PortRestricted V4,
            symmetric: Symmetric V4, double_nat: Double V4, dual_stack_v4: DualStack V4);

        fn check(kind: NatKind, family: IpFamily) {
            udp_passes(kind, family, false);
        }
    }

    mod tcp {
        use super::super::*;
        crate::nat::for_each_kind!(check; full_cone: FullCone V4, restricted: Restricted V4, port_restricted: PortRestricted V4,
            symmetric: Symmetric V4, double_nat: Double V4, udp_blocked: UdpBlocked V4, dual_stack_v4: DualStack V4);

        fn check(kind: NatKind, family: IpFamily) {
            tcp_passes(kind, family, false);
        }
    }
}
