//! Kinds of sites, and simulations of two of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::punch::agent::PunchSettings;
use crate::punch::candidate::Transport;
use crate::punch::nat::{
    FilteringBehaviour, MappingBehaviour, NatBehaviour, NatRelation, can_connect,
};

use super::network::{PUBLIC_REALM, SimNetwork};
use super::router::{SimRouter, StrangerPolicy};
use super::world::{SimPlacement, SimWorld};

/// A site: its routers, the outermost first.
#[derive(Debug, Clone)]
pub(super) struct SimSite {
    pub(super) routers: Vec<NatBehaviour>,
    pub(super) ipv6: bool,
    pub(super) to_strangers: StrangerPolicy,
}

const FULL_CONE: NatBehaviour = NatBehaviour::nat(
    MappingBehaviour::EndpointIndependent,
    FilteringBehaviour::EndpointIndependent,
);
const RESTRICTED: NatBehaviour = NatBehaviour::nat(
    MappingBehaviour::EndpointIndependent,
    FilteringBehaviour::AddressDependent,
);
pub(super) const PORT_RESTRICTED: NatBehaviour = NatBehaviour::nat(
    MappingBehaviour::EndpointIndependent,
    FilteringBehaviour::AddressAndPortDependent,
);
pub(super) const SYMMETRIC: NatBehaviour = NatBehaviour::nat(
    MappingBehaviour::AddressAndPortDependent,
    FilteringBehaviour::AddressAndPortDependent,
);

const MASQUERADE: NatBehaviour = NatBehaviour {
    preserves_ports: true,
    ..PORT_RESTRICTED
};

fn masquerade(routers: &[NatBehaviour]) -> SimSite {
    SimSite {
        to_strangers: StrangerPolicy::Receive,
        ..site_behind(routers)
    }
}

fn site_behind(routers: &[NatBehaviour]) -> SimSite {
    SimSite {
        routers: routers.to_vec(),
        ipv6: false,
        to_strangers: StrangerPolicy::Drop,
    }
}

/// Returns every kind of site with its name.
pub(super) fn all() -> Vec<(&'static str, SimSite)> {
    vec![
        ("none", site_behind(&[])),
        ("firewall", site_behind(&[NatBehaviour::FIREWALL])),
        ("full_cone", site_behind(&[FULL_CONE])),
        ("restricted", site_behind(&[RESTRICTED])),
        ("port_restricted", site_behind(&[PORT_RESTRICTED])),
        (
            "preserving",
            site_behind(&[NatBehaviour {
                preserves_ports: true,
                ..PORT_RESTRICTED
            }]),
        ),
        (
            "refusing",
            SimSite {
                to_strangers: StrangerPolicy::Refuse,
                ..site_behind(&[PORT_RESTRICTED])
            },
        ),
        ("masquerade", masquerade(&[MASQUERADE])),
        ("double_masquerade", masquerade(&[MASQUERADE, MASQUERADE])),
        ("symmetric", site_behind(&[SYMMETRIC])),
        (
            "address_dependent",
            site_behind(&[NatBehaviour::nat(
                MappingBehaviour::AddressDependent,
                FilteringBehaviour::AddressDependent,
            )]),
        ),
        ("double", site_behind(&[PORT_RESTRICTED, RESTRICTED])),
        (
            "double_symmetric",
            site_behind(&[SYMMETRIC, PORT_RESTRICTED]),
        ),
        (
            "udp_blocked",
            site_behind(&[NatBehaviour {
                udp: false,
                ..PORT_RESTRICTED
            }]),
        ),
        (
            "six",
            SimSite {
                ipv6: true,
                ..site_behind(&[NatBehaviour::FIREWALL])
            },
        ),
    ]
}

pub(super) fn site_named(name: &str) -> SimSite {
    all()
        .into_iter()
        .find(|(known, _)| *known == name)
        .unwrap()
        .1
}

/// Returns the behaviour of all routers of a site, as seen from outside.
fn composed_behaviour(site: &SimSite) -> NatBehaviour {
    site.routers
        .iter()
        .fold(NatBehaviour::OPEN, |all, one| NatBehaviour {
            translates: all.translates || one.translates,
            mapping: all.mapping.max(one.mapping),
            filtering: all.filtering.max(one.filtering),
            udp: all.udp && one.udp,
            ..all
        })
}

/// Returns whether theory permits two distant sites to connect.
pub(super) fn is_permitted(a: &SimSite, b: &SimSite, transports: &[Transport]) -> bool {
    let (one, other) = (composed_behaviour(a), composed_behaviour(b));
    a.ipv6 == b.ipv6
        && transports
            .iter()
            .any(|&transport| can_connect(&one, &other, NatRelation::Apart, transport))
}

/// Builds a site in a network; `number` distinguishes sites.
pub(super) fn build_site(
    network: &mut SimNetwork,
    outside: usize,
    site: &SimSite,
    number: u8,
    seed: u64,
) -> SimPlacement {
    let mut realm = outside;
    for (depth, behaviour) in site.routers.iter().enumerate() {
        let outer = if depth == 0 {
            [198, 51, 100, number]
        } else {
            [100, 64, 0, number]
        };
        let outer = behaviour.translates.then_some(IpAddr::from(outer));
        let mut router = SimRouter::new(
            *behaviour,
            outer,
            seed ^ (u64::from(number) << 32) ^ (depth as u64) << 40,
        );
        router.to_strangers = site.to_strangers;
        realm = network.add_realm(realm, router, outer);
    }
    let translates = site.routers.iter().any(|router| router.translates);
    let ip = match (site.ipv6, translates) {
        (true, _) => IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into())),
        (false, true) => IpAddr::V4(Ipv4Addr::new(192, 168, 1, 10)), // both sides use it: private networks overlap in practice
        (false, false) => IpAddr::V4(Ipv4Addr::new(192, 0, 2, number)),
    };
    SimPlacement { realm, ip }
}

/// Creates two sites with the public network between them.
pub(super) fn world_apart(
    a: &SimSite,
    b: &SimSite,
    settings: &PunchSettings,
    seed: u64,
) -> SimWorld {
    let mut network = SimNetwork::new();
    let places = [
        build_site(&mut network, PUBLIC_REALM, a, 1, seed),
        build_site(&mut network, PUBLIC_REALM, b, 2, seed),
    ];
    SimWorld::new(network, places, settings, seed)
}
