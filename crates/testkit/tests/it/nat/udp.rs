//! UDP: mapping and filtering of every kind.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use nearpath_testkit::lab::nat::{IpFamily, NatKind, NatPlan};

use crate::nat::fixture::{NatFixture, filtering, mapping};
use crate::nat::for_each_kind;
use crate::nat::sockets::{accept, dial, listener, port, receive, round_trip, send, udp, until};

for_each_kind!(check);

fn check(kind: NatKind, family: IpFamily) {
    let fixture = NatFixture::new(kind, family);
    let places = fixture
        .observer_addresses()
        .map(|place| udp(fixture.rendezvous(), place.ip(), place.port()));
    if !kind.passes_udp() {
        return nothing_passes(&fixture, &places);
    }
    mapping_is_as_named(&fixture, &places);
    filtering_is_as_named(&fixture, &places);
}

fn mapping_is_as_named(fixture: &NatFixture, places: &[UdpSocket; 4]) {
    let socket = udp(fixture.machine_node(), fixture.inside(), 0);
    let seen = places.each_ref().map(|place| {
        send(&socket, 1, place.local_addr().unwrap());
        receive(place).1
    });
    let found = mapping(socket.local_addr().unwrap(), seen);
    assert_eq!(
        Some(found),
        fixture.site.plan.kind.mapping_of(fixture.family),
        "{seen:?}"
    );
}

fn filtering_is_as_named(fixture: &NatFixture, places: &[UdpSocket; 4]) {
    let socket = udp(fixture.machine_node(), fixture.inside(), 0);
    send(&socket, 1, places[0].local_addr().unwrap());
    let (_, outside) = receive(&places[0]);
    for number in [1, 2, 3, 0] {
        send(&places[number], number as u8, outside);
    }
    let got_in = until(&socket, 0);
    let from = |place: usize| got_in.contains(&(place as u8, places[place].local_addr().unwrap()));
    let found = filtering([1, 2, 3].map(from));
    assert_eq!(
        Some(found),
        fixture.site.plan.kind.filtering_of(fixture.family),
        "{got_in:?}"
    );
    assert!(
        got_in.len() == 3 || got_in.len() < 2,
        "nothing arrives from elsewhere or twice: {got_in:?}"
    );
}

fn nothing_passes(fixture: &NatFixture, places: &[UdpSocket; 4]) {
    let socket = udp(fixture.machine_node(), fixture.inside(), 0);
    for place in places {
        send(&socket, 1, place.local_addr().unwrap());
    }
    // TCP passes on the same links, so all UDP packets have arrived or are lost when it has.
    let listener = listener(fixture.rendezvous(), fixture.observer_addresses()[0]);
    let (from, _holder) = port(fixture.machine_node(), fixture.inside());
    let near = dial(
        fixture.machine_node(),
        from,
        fixture.observer_addresses()[0],
    )
    .stream();
    let (far, _) = accept(&listener);
    round_trip([&near, &far]).unwrap();
    for place in places {
        place.set_nonblocking(true).unwrap();
        assert_eq!(
            place.recv(&mut [0]).unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock
        );
    }
}

/// A socket that has contacted an address, and the mapped address seen there.
struct UdpFlow {
    socket: UdpSocket,
    mapped_address: UdpSocket,
    outside: SocketAddr,
}

impl UdpFlow {
    fn new(fixture: &NatFixture) -> Self {
        let at = fixture.observer_addresses()[0];
        let place = udp(fixture.rendezvous(), at.ip(), at.port());
        let socket = udp(fixture.machine_node(), fixture.inside(), 0);
        let outside = write(&socket, &place);
        let flow = Self {
            socket,
            mapped_address: place,
            outside,
        };
        assert!(flow.lets_in(fixture), "the control: it is let in at first");
        flow
    }

    /// Returns true if packets from the address are accepted. A later packet to another socket is
    /// the barrier.
    fn lets_in(&self, fixture: &NatFixture) -> bool {
        let fresh = udp(fixture.machine_node(), fixture.inside(), 0);
        send(&self.mapped_address, 2, self.outside);
        send(&self.mapped_address, 9, write(&fresh, &self.mapped_address));
        until(&fresh, 9);
        self.socket.set_nonblocking(true).unwrap();
        self.socket.recv(&mut [0]).is_ok()
    }
}

/// Sends from a machine to an address, and returns the source that is seen there.
fn write(from: &UdpSocket, to: &UdpSocket) -> SocketAddr {
    send(from, 1, to.local_addr().unwrap());
    receive(to).1
}

/// A flow that is idle for the plan's lifetime is deleted.
mod lifetime {
    use super::*;

    for_each_kind!(check; full_cone: FullCone V4, restricted: Restricted V4, port_restricted: PortRestricted V4,
        symmetric: Symmetric V4, firewall: Firewall V4, v6_only: V6Only V6);

    fn check(kind: NatKind, family: IpFamily) {
        let lifetime = Duration::from_secs(1);
        let fixture = NatFixture::new(
            NatPlan {
                lifetime,
                ..kind.into()
            },
            family,
        );
        let flow = UdpFlow::new(&fixture);
        // The expiry is not announced, and a probe renews the flow. So each probe comes later than
        // the lifetime.
        let forgotten = (0..10).any(|_| {
            std::thread::sleep(lifetime * 2);
            !flow.lets_in(&fixture)
        });
        assert!(forgotten);
    }
}

/// A router that loses its flows accepts inbound packets only after new outgoing ones.
mod forgetting {
    use super::*;

    for_each_kind!(check; full_cone: FullCone V4, restricted: Restricted V4, port_restricted: PortRestricted V4,
        symmetric: Symmetric V4, double_nat: Double V4, firewall: Firewall V4, v6_only: V6Only V6);

    fn check(kind: NatKind, family: IpFamily) {
        let fixture = NatFixture::new(kind, family);
        let flow = UdpFlow::new(&fixture);
        fixture.site.forget_flows().unwrap();
        assert!(!flow.lets_in(&fixture));
        let again = write(&flow.socket, &flow.mapped_address);
        assert!(again == flow.outside || kind == NatKind::Symmetric);
        assert!(
            UdpFlow {
                outside: again,
                ..flow
            }
            .lets_in(&fixture)
        );
    }
}

/// With `refuses_packets` a refused sender gets an ICMP error.
mod refusing {
    use super::*;

    for_each_kind!(check; port_restricted: PortRestricted V4, double_nat: Double V4, firewall: Firewall V4, v6_only: V6Only V6);

    fn check(kind: NatKind, family: IpFamily) {
        let fixture = NatFixture::new(
            NatPlan {
                refuses_packets: true,
                ..kind.into()
            },
            family,
        );
        let [place, stranger] = [0, 1].map(|n| {
            udp(
                fixture.rendezvous(),
                fixture.observer_addresses()[n].ip(),
                fixture.observer_addresses()[n].port(),
            )
        });
        let socket = udp(fixture.machine_node(), fixture.inside(), 0);
        send(&socket, 1, place.local_addr().unwrap());
        stranger.connect(receive(&place).1).unwrap();
        stranger.send(&[2]).unwrap();
        assert_eq!(
            stranger.recv(&mut [0]).unwrap_err().kind(),
            std::io::ErrorKind::ConnectionRefused
        );
    }
}

/// A stranger's datagram takes the outside port towards that stranger: the machine's own datagrams
/// to it leave from another one.
#[test]
fn a_masquerade_gives_the_port_to_the_stranger_that_sends_first() {
    nearpath_testkit::need_nat!();
    let fixture = NatFixture::new(NatKind::Masquerade, IpFamily::V4);
    let [place, early, late] = [0, 1, 2].map(|n| {
        let at = fixture.observer_addresses()[n];
        udp(fixture.rendezvous(), at.ip(), at.port())
    });
    let socket = udp(fixture.machine_node(), fixture.inside(), 0);
    let outside = write(&socket, &place);
    assert_eq!(write(&socket, &late), outside, "the machine was first");
    send(&early, 2, outside);
    // The link keeps the order: once this one is here, the stranger's has met the router.
    send(&place, 9, outside);
    assert_eq!(until(&socket, 9), [], "the router keeps it");
    assert_ne!(write(&socket, &early), outside, "the stranger was first");
}
