//! The kinds of places that sides stand in, and worlds made of two of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::punch::agent::Settings;
use crate::punch::candidate::Transport;
use crate::punch::nat::{Behaviour, Between, Filtering, Mapping, can};

use super::network::{Network, PUBLIC};
use super::router::Router;
use super::world::{Place, World};

/// A place: the routers before it, the outermost first.
#[derive(Debug, Clone)]
pub(super) struct Site {
    pub(super) routers: Vec<Behaviour>,
    pub(super) six: bool,
    pub(super) refuses: bool,
}

const FULL: Behaviour = Behaviour::nat(Mapping::Independent, Filtering::Independent);
const RESTRICTED: Behaviour = Behaviour::nat(Mapping::Independent, Filtering::Address);
pub(super) const PORT_RESTRICTED: Behaviour = Behaviour::nat(Mapping::Independent, Filtering::AddressAndPort);
pub(super) const SYMMETRIC: Behaviour = Behaviour::nat(Mapping::AddressAndPort, Filtering::AddressAndPort);

fn site(routers: &[Behaviour]) -> Site {
    Site { routers: routers.to_vec(), six: false, refuses: false }
}

/// Every kind, with its name.
pub(super) fn all() -> Vec<(&'static str, Site)> {
    vec![
        ("none", site(&[])),
        ("firewall", site(&[Behaviour::FIREWALL])),
        ("full_cone", site(&[FULL])),
        ("restricted", site(&[RESTRICTED])),
        ("port_restricted", site(&[PORT_RESTRICTED])),
        ("preserving", site(&[Behaviour { preserves_ports: true, ..PORT_RESTRICTED }])),
        ("refusing", Site { refuses: true, ..site(&[PORT_RESTRICTED]) }),
        ("symmetric", site(&[SYMMETRIC])),
        ("address_dependent", site(&[Behaviour::nat(Mapping::Address, Filtering::Address)])),
        ("double", site(&[PORT_RESTRICTED, RESTRICTED])),
        ("double_symmetric", site(&[SYMMETRIC, PORT_RESTRICTED])),
        ("udp_blocked", site(&[Behaviour { udp: false, ..PORT_RESTRICTED }])),
        ("six", Site { six: true, ..site(&[Behaviour::FIREWALL]) }),
    ]
}

pub(super) fn named(name: &str) -> Site {
    all().into_iter().find(|(known, _)| *known == name).unwrap().1
}

/// All routers of a site as one, as they look from outside.
fn composed(site: &Site) -> Behaviour {
    site.routers.iter().fold(Behaviour::OPEN, |all, one| Behaviour {
        translates: all.translates || one.translates,
        mapping: all.mapping.max(one.mapping),
        filtering: all.filtering.max(one.filtering),
        udp: all.udp && one.udp,
        ..all
    })
}

/// What theory says of two sites that are apart.
pub(super) fn permitted(a: &Site, b: &Site, transports: &[Transport]) -> bool {
    let (one, other) = (composed(a), composed(b));
    a.six == b.six && transports.iter().any(|&transport| can(&one, &other, Between::Apart, transport))
}

/// Builds a site in a network of others; `number` tells sites apart.
pub(super) fn place(network: &mut Network, outside: usize, site: &Site, number: u8, seed: u64) -> Place {
    let mut realm = outside;
    for (depth, behaviour) in site.routers.iter().enumerate() {
        let outer = if depth == 0 { [198, 51, 100, number] } else { [100, 64, 0, number] };
        let outer = behaviour.translates.then_some(IpAddr::from(outer));
        let mut router = Router::new(*behaviour, outer, seed ^ (u64::from(number) << 32) ^ (depth as u64) << 40);
        router.refuses = site.refuses;
        realm = network.behind(realm, router, outer);
    }
    let translates = site.routers.iter().any(|router| router.translates);
    let ip = match (site.six, translates) {
        (true, _) => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into())),
        (false, true) => IpAddr::V4(Ipv4Addr::new(192, 168, 1, 10)), // both sides have it: networks overlap in practice
        (false, false) => IpAddr::V4(Ipv4Addr::new(192, 0, 2, number)),
    };
    Place { realm, ip }
}

/// Two sites with the public network between them.
pub(super) fn apart(a: &Site, b: &Site, settings: &Settings, seed: u64) -> World {
    let mut network = Network::new();
    let places = [place(&mut network, PUBLIC, a, 1, seed), place(&mut network, PUBLIC, b, 2, seed)];
    World::new(network, places, settings, seed)
}
