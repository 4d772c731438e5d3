//! The kind that is found out is the kind that is there.

use std::net::{IpAddr, SocketAddr};

use crate::punch::candidate::Transport;
use crate::punch::nat::{Behaviour, Detector, Filtering, Mapping, Observation, Report, Server};

use super::network::{End, Network, PUBLIC};
use super::router::Router;

const SERVERS: [Server; 4] = [
    Server::FIRST,
    Server { second_address: false, second_port: true },
    Server { second_address: true, second_port: false },
    Server { second_address: true, second_port: true },
];

fn addr(server: Server) -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 1 + u8::from(server.second_address)], 3478 + u16::from(server.second_port)))
}

/// Does what the rendezvous and a worker do together, with two sockets.
fn survey(behaviour: Behaviour) -> Report {
    let mut network = Network::new();
    let outer = Some(IpAddr::from([198, 51, 100, 1])).filter(|_| behaviour.translates);
    let realm = network.behind(PUBLIC, Router::new(behaviour, outer, 5), outer);
    let own = SocketAddr::from(([192, 168, 1, 10], 40_000));
    let host = network.host(realm, own.ip());
    let servers = [SERVERS[0], SERVERS[2]].map(|server| network.host(PUBLIC, addr(server).ip()));
    let second = SocketAddr::new(own.ip(), 40_001);
    let (mut detector, udp) = (Detector::new(own), Transport::Udp);
    let seen = |network: &mut Network, detector: &mut Detector, by: Server| match network.send(host, udp, own, addr(by))
    {
        End::Host { from: at, .. } => detector.observe(Observation::Seen { by, at }),
        _ => detector.observe(Observation::Silence),
    };
    seen(&mut network, &mut detector, Server::FIRST);
    if let End::Host { from: at, .. } = network.send(host, udp, second, addr(Server::FIRST)) {
        for &from in &SERVERS[1..] {
            let end = network.send(servers[usize::from(from.second_address)], udp, addr(from), at);
            if matches!(end, End::Host { host: to, .. } if to == host) {
                detector.observe(Observation::Unasked { from });
            }
        }
        detector.observe(Observation::Waited);
        SERVERS[1..].iter().for_each(|&by| seen(&mut network, &mut detector, by));
        if matches!(network.send(host, udp, second, at), End::Host { host: to, .. } if to == host) {
            detector.observe(Observation::TurnedAround);
        }
    }
    detector.report()
}

#[test]
fn every_kind_is_told_from_every_other() {
    let mappings = [Mapping::Independent, Mapping::Address, Mapping::AddressAndPort];
    let filterings = [Filtering::Independent, Filtering::Address, Filtering::AddressAndPort];
    for (mapping, filtering) in mappings.into_iter().flat_map(|m| filterings.map(|f| (m, f))) {
        let behaviour = Behaviour::nat(mapping, filtering);
        assert_eq!(survey(behaviour).behaviour(), Some(behaviour));
    }
    for behaviour in [
        Behaviour::OPEN,
        Behaviour::FIREWALL,
        Behaviour { hairpins: true, ..Behaviour::nat(Mapping::Independent, Filtering::Independent) },
        Behaviour { preserves_ports: true, ..Behaviour::nat(Mapping::Independent, Filtering::AddressAndPort) },
    ] {
        assert_eq!(survey(behaviour).behaviour(), Some(behaviour));
    }
}

#[test]
fn blocked_udp_is_told() {
    let report = survey(Behaviour { udp: false, ..Behaviour::FIREWALL });
    assert_eq!((report.udp, report.reflexive, report.behaviour()), (Some(false), None, None));
}
