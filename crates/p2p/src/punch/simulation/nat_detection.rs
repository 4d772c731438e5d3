//! The detected kind of NAT is the present one.

use std::net::{IpAddr, SocketAddr};

use crate::punch::candidate::Transport;
use crate::punch::nat::{
    FilteringBehaviour, MappingBehaviour, NatBehaviour, NatDetector, NatObservation, NatReport,
    ObserverSocket,
};

use super::network::{PUBLIC_REALM, PacketDelivery, SimNetwork};
use super::router::SimRouter;

const SERVERS: [ObserverSocket; 4] = [
    ObserverSocket::FIRST,
    ObserverSocket {
        second_address: false,
        second_port: true,
    },
    ObserverSocket {
        second_address: true,
        second_port: false,
    },
    ObserverSocket {
        second_address: true,
        second_port: true,
    },
];

fn observer_addr(server: ObserverSocket) -> SocketAddr {
    SocketAddr::from((
        [203, 0, 113, 1 + u8::from(server.second_address)],
        3478 + u16::from(server.second_port),
    ))
}

/// Runs the survey of a rendezvous and a worker with two sockets.
fn survey_nat(behaviour: NatBehaviour) -> NatReport {
    let mut network = SimNetwork::new();
    let outer = Some(IpAddr::from([198, 51, 100, 1])).filter(|_| behaviour.translates);
    let realm = network.add_realm(PUBLIC_REALM, SimRouter::new(behaviour, outer, 5), outer);
    let own = SocketAddr::from(([192, 168, 1, 10], 40_000));
    let host = network.add_host(realm, own.ip());
    let servers = [SERVERS[0], SERVERS[2]]
        .map(|server| network.add_host(PUBLIC_REALM, observer_addr(server).ip()));
    let second = SocketAddr::new(own.ip(), 40_001);
    let (mut detector, udp) = (NatDetector::new(own), Transport::Udp);
    let seen =
        |network: &mut SimNetwork, detector: &mut NatDetector, by: ObserverSocket| match network
            .send(host, udp, own, observer_addr(by))
        {
            PacketDelivery::Host { from: at, .. } => {
                detector.observe(NatObservation::Mapped { by, at })
            }
            _ => detector.observe(NatObservation::NoResponse),
        };
    seen(&mut network, &mut detector, ObserverSocket::FIRST);
    if let PacketDelivery::Host { from: at, .. } =
        network.send(host, udp, second, observer_addr(ObserverSocket::FIRST))
    {
        for &from in &SERVERS[1..] {
            let end = network.send(
                servers[usize::from(from.second_address)],
                udp,
                observer_addr(from),
                at,
            );
            if matches!(end, PacketDelivery::Host { host: to, .. } if to == host) {
                detector.observe(NatObservation::Unsolicited { from });
            }
        }
        detector.observe(NatObservation::WaitElapsed);
        SERVERS[1..]
            .iter()
            .for_each(|&by| seen(&mut network, &mut detector, by));
        if matches!(network.send(host, udp, second, at), PacketDelivery::Host { host: to, .. } if to == host)
        {
            detector.observe(NatObservation::Hairpinned);
        }
    }
    detector.report()
}

#[test]
fn every_nat_kind_is_detected() {
    let mappings = [
        MappingBehaviour::EndpointIndependent,
        MappingBehaviour::AddressDependent,
        MappingBehaviour::AddressAndPortDependent,
    ];
    let filterings = [
        FilteringBehaviour::EndpointIndependent,
        FilteringBehaviour::AddressDependent,
        FilteringBehaviour::AddressAndPortDependent,
    ];
    for (mapping, filtering) in mappings
        .into_iter()
        .flat_map(|m| filterings.map(|f| (m, f)))
    {
        let behaviour = NatBehaviour::nat(mapping, filtering);
        assert_eq!(survey_nat(behaviour).behaviour(), Some(behaviour));
    }
    for behaviour in [
        NatBehaviour::OPEN,
        NatBehaviour::FIREWALL,
        NatBehaviour {
            hairpins: true,
            ..NatBehaviour::nat(
                MappingBehaviour::EndpointIndependent,
                FilteringBehaviour::EndpointIndependent,
            )
        },
        NatBehaviour {
            preserves_ports: true,
            ..NatBehaviour::nat(
                MappingBehaviour::EndpointIndependent,
                FilteringBehaviour::AddressAndPortDependent,
            )
        },
    ] {
        assert_eq!(survey_nat(behaviour).behaviour(), Some(behaviour));
    }
}

#[test]
fn blocked_udp_is_detected() {
    let report = survey_nat(NatBehaviour {
        udp: false,
        ..NatBehaviour::FIREWALL
    });
    assert_eq!(
        (report.udp, report.reflexive, report.behaviour()),
        (Some(false), None, None)
    );
}
