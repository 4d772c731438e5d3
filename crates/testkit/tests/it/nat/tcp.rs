//! TCP: mapping and filtering of every kind, and inbound connections after a SYN in the other
//! direction.

use std::net::SocketAddr;

use nearpath_testkit::lab::LinkConditions;
use nearpath_testkit::lab::nat::{IpFamily, LabMapping, NatKind, NatPlan};
use rustix::io::Errno;

use crate::nat::fixture::{self, NatFixture};
use crate::nat::for_each_kind;
use crate::nat::sockets::{PendingDial, accept, dial, listener, port, round_trip};

mod mapping {
    use super::*;

    for_each_kind!(check);

    fn check(kind: NatKind, family: IpFamily) {
        let fixture = NatFixture::new(kind, family);
        let (inside, _holder) = port(fixture.machine_node(), fixture.inside());
        let seen = fixture.observer_addresses().map(|place| {
            let listener = listener(fixture.rendezvous(), place);
            let _near = dial(fixture.machine_node(), inside, place).stream();
            accept(&listener).1
        });
        assert_eq!(
            Some(fixture::mapping(inside, seen)),
            kind.mapping_of(family),
            "{seen:?}"
        );
    }
}

mod filtering {
    use super::*;

    for_each_kind!(check);

    fn check(kind: NatKind, family: IpFamily) {
        let fixture = NatFixture::new(kind, family);
        let (inside, _holder) = port(fixture.machine_node(), fixture.inside());
        let _there = listener(fixture.machine_node(), inside);
        let places = fixture.observer_addresses();
        let rendezvous = listener(fixture.rendezvous(), places[0]);
        let near = dial(fixture.machine_node(), inside, places[0]).stream();
        let (far, outside) = accept(&rendezvous);
        let knocks = [1, 2, 3].map(|place| {
            let from = places[place];
            FilterProbe {
                from,
                dial: dial(fixture.rendezvous(), from, outside),
            }
        });
        for _ in 0..2 {
            round_trip([&far, &near]).unwrap();
        }
        let answers = knocks.each_ref().map(|knock| knock.dial.now());
        let got_in = answers.map(|answer| answer == Some(Ok(())));
        assert_eq!(
            Some(fixture::filtering(got_in)),
            kind.filtering_of(family),
            "{got_in:?}"
        );
        for (knock, answer) in knocks.iter().zip(answers) {
            match answer {
                Some(Ok(())) => (),
                Some(Err(error)) => assert_eq!(
                    (kind, error),
                    (NatKind::Masquerade, Errno::CONNREFUSED),
                    "dropped, not refused"
                ),
                None => a_syn_to_that_address_opens(&fixture, inside, knock),
            }
        }
    }
}

/// An address of the rendezvous that was not contacted and connects to a port of the machine.
struct FilterProbe {
    from: SocketAddr,
    dial: PendingDial,
}

/// Both sides have sent a SYN then and connect by it, unless the machine's comes from another port
/// than the probed one.
fn a_syn_to_that_address_opens(fixture: &NatFixture, inside: SocketAddr, knock: &FilterProbe) {
    let dialled = dial(fixture.machine_node(), inside, knock.from);
    let answer = dialled.ended();
    if fixture.site.plan.kind.mapping_of(fixture.family)
        == Some(LabMapping::AddressAndPortDependent)
    {
        assert_eq!(
            answer,
            Err(Errno::CONNREFUSED),
            "a SYN from its new port is unexpected"
        );
    } else {
        assert_eq!((answer, knock.dial.ended()), (Ok(()), Ok(())));
    }
}

/// With `refuses_packets` a refused peer gets a RST, and is accepted once the machine has contacted
/// it.
mod refusing {
    use super::*;

    for_each_kind!(check; port_restricted: PortRestricted V4, masquerade: Masquerade V4, symmetric: Symmetric V4, double_nat: Double V4,
        firewall: Firewall V4, v6_only: V6Only V6);

    fn check(kind: NatKind, family: IpFamily) {
        let fixture = NatFixture::new(
            NatPlan {
                refuses_packets: true,
                ..kind.into()
            },
            family,
        );
        let (inside, _holder) = port(fixture.machine_node(), fixture.inside());
        let [home, stranger, ..] = fixture.observer_addresses();
        let rendezvous = listener(fixture.rendezvous(), home);
        let _near = dial(fixture.machine_node(), inside, home).stream();
        let (_far, outside) = accept(&rendezvous);
        assert_eq!(
            dial(fixture.rendezvous(), stranger, outside).ended(),
            Err(Errno::CONNREFUSED)
        );
        let later = listener(fixture.rendezvous(), stranger);
        let _near = dial(fixture.machine_node(), inside, stranger).stream();
        let again = accept(&later).1;
        assert!(
            again == outside || kind == NatKind::Symmetric,
            "a refusal leaves no trace in the mapping"
        );
    }
}

#[test]
fn a_port_that_is_opened_lets_everybody_in_there_and_nowhere_else() {
    nearpath_testkit::need_nat!();
    let plan = NatPlan {
        conditions: LinkConditions::plain(),
        is_plain: true,
        ..NatKind::PortRestricted.into()
    };
    let fixture = NatFixture::new(plan, IpFamily::V4);
    fixture.site.open_port(4001).unwrap();
    let [opened, closed] =
        [4001, 4002].map(|port| SocketAddr::new(fixture.site.outside_address().into(), port));
    let (inside, _other) = [4001, 4002]
        .map(|port| listener(fixture.machine_node(), (fixture.inside(), port).into()))
        .into();
    let [at, elsewhere] = [
        fixture.observer_addresses()[0],
        fixture.observer_addresses()[1],
    ];
    let knock = dial(fixture.rendezvous(), elsewhere, closed);
    let near = dial(fixture.rendezvous(), at, opened).stream();
    let (far, from) = accept(&inside);
    round_trip([&near, &far]).unwrap();
    assert_eq!((from, knock.now()), (at, None));
    let double = NatFixture::new(NatKind::Double, IpFamily::V4);
    assert!(double.site.open_port(4001).is_err(), "two routers");
}
