//! UDP: mapping and filtering of every kind.

use std::net::UdpSocket;

use nearpath_testkit::lab::nat::{Family, Kind};

use crate::for_each_kind;
use crate::scene::{Scene, filtering, mapping};
use crate::sockets::{accept, dial, listener, port, receive, round_trip, send, udp, until};

for_each_kind!(check);

fn check(kind: Kind, family: Family) {
    let scene = Scene::new(kind, family);
    let places = scene.places().map(|place| udp(scene.rendezvous(), place.ip(), place.port()));
    if !kind.passes_udp() {
        return nothing_passes(&scene, &places);
    }
    mapping_is_as_named(&scene, &places);
    filtering_is_as_named(&scene, &places);
}

fn mapping_is_as_named(scene: &Scene, places: &[UdpSocket; 4]) {
    let socket = udp(scene.machine(), scene.inside(), 0);
    let seen = places.each_ref().map(|place| {
        send(&socket, 1, place.local_addr().unwrap());
        receive(place).1
    });
    let found = mapping(socket.local_addr().unwrap(), seen);
    assert_eq!(Some(found), scene.site.plan.kind.mapping(scene.family), "{seen:?}");
}

fn filtering_is_as_named(scene: &Scene, places: &[UdpSocket; 4]) {
    let socket = udp(scene.machine(), scene.inside(), 0);
    send(&socket, 1, places[0].local_addr().unwrap());
    let (_, outside) = receive(&places[0]);
    for number in [1, 2, 3, 0] {
        send(&places[number], number as u8, outside);
    }
    let got_in = until(&socket, 0);
    let from = |place: usize| got_in.contains(&(place as u8, places[place].local_addr().unwrap()));
    let found = filtering([1, 2, 3].map(from));
    assert_eq!(Some(found), scene.site.plan.kind.filtering(scene.family), "{got_in:?}");
    assert!(got_in.len() == 3 || got_in.len() < 2, "nothing arrives from elsewhere or twice: {got_in:?}");
}

fn nothing_passes(scene: &Scene, places: &[UdpSocket; 4]) {
    let socket = udp(scene.machine(), scene.inside(), 0);
    for place in places {
        send(&socket, 1, place.local_addr().unwrap());
    }
    // TCP passes, on the same lines: whatever UDP did is over when it has.
    let listener = listener(scene.rendezvous(), scene.places()[0]);
    let (from, _holder) = port(scene.machine(), scene.inside());
    let near = dial(scene.machine(), from, scene.places()[0]).stream();
    let (far, _) = accept(&listener);
    round_trip([&near, &far]).unwrap();
    for place in places {
        place.set_nonblocking(true).unwrap();
        assert_eq!(place.recv(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }
}
