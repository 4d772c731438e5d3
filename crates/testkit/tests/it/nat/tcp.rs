//! TCP: mapping and filtering of every kind, and who gets in after a SYN in the other direction.

use std::net::SocketAddr;

use nearpath_testkit::lab::Link;
use nearpath_testkit::lab::nat::{Family, Kind, Mapping, Plan};
use rustix::io::Errno;

use crate::nat::for_each_kind;
use crate::nat::scene::{self, Scene};
use crate::nat::sockets::{Dial, accept, dial, listener, port, round_trip};

mod mapping {
    use super::*;

    for_each_kind!(check);

    fn check(kind: Kind, family: Family) {
        let scene = Scene::new(kind, family);
        let (inside, _holder) = port(scene.machine(), scene.inside());
        let seen = scene.places().map(|place| {
            let listener = listener(scene.rendezvous(), place);
            let _near = dial(scene.machine(), inside, place).stream();
            accept(&listener).1
        });
        assert_eq!(Some(scene::mapping(inside, seen)), kind.mapping(family), "{seen:?}");
    }
}

mod filtering {
    use super::*;

    for_each_kind!(check);

    fn check(kind: Kind, family: Family) {
        let scene = Scene::new(kind, family);
        let (inside, _holder) = port(scene.machine(), scene.inside());
        let _there = listener(scene.machine(), inside);
        let places = scene.places();
        let rendezvous = listener(scene.rendezvous(), places[0]);
        let near = dial(scene.machine(), inside, places[0]).stream();
        let (far, outside) = accept(&rendezvous);
        let knocks = [1, 2, 3].map(|place| {
            let from = places[place];
            Knock { from, dial: dial(scene.rendezvous(), from, outside) }
        });
        for _ in 0..2 {
            round_trip([&far, &near]).unwrap();
        }
        let got_in = knocks.each_ref().map(|knock| knock.dial.now() == Some(Ok(())));
        assert_eq!(Some(scene::filtering(got_in)), kind.filtering(family), "{got_in:?}");
        for knock in knocks.iter().zip(got_in).filter_map(|(knock, got_in)| (!got_in).then_some(knock)) {
            a_syn_to_that_place_opens(&scene, inside, knock);
        }
    }
}

/// Somebody at the rendezvous who was not written to and connects to a port of the machine.
struct Knock {
    from: SocketAddr,
    dial: Dial,
}

/// Both have sent a SYN then, and connect by it, unless the machine's comes from another port than was knocked at.
fn a_syn_to_that_place_opens(scene: &Scene, inside: SocketAddr, knock: &Knock) {
    assert_eq!(knock.dial.now(), None, "dropped, not refused");
    let dialled = dial(scene.machine(), inside, knock.from);
    let answer = dialled.ended();
    if scene.site.plan.kind.mapping(scene.family) == Some(Mapping::AddressAndPortDependent) {
        assert_eq!(answer, Err(Errno::CONNREFUSED), "nobody expects a SYN from its new port");
    } else {
        assert_eq!((answer, knock.dial.ended()), (Ok(()), Ok(())));
    }
}

/// With `refuses` the one who is not let in gets a RST, and is let in all the same once the machine has written to them.
mod refusing {
    use super::*;

    for_each_kind!(check; port_restricted: PortRestricted V4, symmetric: Symmetric V4, double_nat: Double V4,
        firewall: Firewall V4, v6_only: V6Only V6);

    fn check(kind: Kind, family: Family) {
        let scene = Scene::new(Plan { refuses: true, ..kind.into() }, family);
        let (inside, _holder) = port(scene.machine(), scene.inside());
        let [home, stranger, ..] = scene.places();
        let rendezvous = listener(scene.rendezvous(), home);
        let _near = dial(scene.machine(), inside, home).stream();
        let (_far, outside) = accept(&rendezvous);
        assert_eq!(dial(scene.rendezvous(), stranger, outside).ended(), Err(Errno::CONNREFUSED));
        let later = listener(scene.rendezvous(), stranger);
        let _near = dial(scene.machine(), inside, stranger).stream();
        let again = accept(&later).1;
        assert!(again == outside || kind == Kind::Symmetric, "a refusal leaves no trace in the mapping");
    }
}

#[test]
fn a_port_that_is_opened_lets_everybody_in_there_and_nowhere_else() {
    nearpath_testkit::need_nat!();
    let plan = Plan { line: Link::plain(), plain: true, ..Kind::PortRestricted.into() };
    let scene = Scene::new(plan, Family::V4);
    scene.site.open_port(4001).unwrap();
    let [opened, closed] = [4001, 4002].map(|port| SocketAddr::new(scene.site.outside().into(), port));
    let (inside, _other) = [4001, 4002].map(|port| listener(scene.machine(), (scene.inside(), port).into())).into();
    let [at, elsewhere] = [scene.places()[0], scene.places()[1]];
    let knock = dial(scene.rendezvous(), elsewhere, closed);
    let near = dial(scene.rendezvous(), at, opened).stream();
    let (far, from) = accept(&inside);
    round_trip([&near, &far]).unwrap();
    assert_eq!((from, knock.now()), (at, None));
    let double = Scene::new(Kind::Double, Family::V4);
    assert!(double.site.open_port(4001).is_err(), "two routers");
}
