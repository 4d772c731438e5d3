//! Networks, the routers between them, and their hosts: routing of packets.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::punch::candidate::Transport;

use super::router::{SimRouter, StrangerPolicy};

pub(super) const PUBLIC_REALM: usize = 0;
/// Hop limit of packets without one of their own.
pub(super) const DEFAULT_HOP_LIMIT: u8 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AddressOwner {
    Host(usize),
    Router(usize),
}

#[derive(Debug, Default)]
struct NetworkRealm {
    gateway: Option<usize>,
    owners: HashMap<IpAddr, AddressOwner>,
}

#[derive(Debug)]
struct RouterLink {
    router: SimRouter,
    inside: usize,
    outside: usize,
}

/// Routers of the public network between sites of different providers.
const DISTANT_HOPS: u8 = 4;

/// Result of routing a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PacketDelivery {
    /// Delivered to a host, with the addresses that it sees.
    Host {
        host: usize,
        from: SocketAddr,
        to: SocketAddr,
    },
    /// Refused by a router, towards the packet's apparent source.
    Refused {
        realm: usize,
        from: SocketAddr,
        to: SocketAddr,
    },
    /// Dropped.
    Lost,
}

/// Packet on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct PacketTransit {
    hop_limit: u8,
    realm: usize,
    transport: Transport,
    from: SocketAddr,
    to: SocketAddr,
    came_through: Option<usize>,
    /// True in the public network: what follows happens at the arrival.
    is_public: bool,
}

/// Result of the first or second part of a packet's way.
#[derive(Debug, Clone, Copy)]
pub(super) enum RouteStep {
    Delivery(PacketDelivery),
    Transit(PacketTransit),
}

impl From<PacketDelivery> for RouteStep {
    fn from(delivery: PacketDelivery) -> Self {
        Self::Delivery(delivery)
    }
}

#[derive(Debug)]
pub(super) struct SimNetwork {
    /// Routers of the public network between two sites.
    pub(super) public_hops: u8,
    realms: Vec<NetworkRealm>,
    routers: Vec<RouterLink>,
    hosts: Vec<usize>,
}

impl SimNetwork {
    pub(super) fn new() -> Self {
        Self {
            public_hops: DISTANT_HOPS,
            realms: vec![NetworkRealm::default()],
            routers: Vec::new(),
            hosts: Vec::new(),
        }
    }

    /// Adds a network behind a router.
    pub(super) fn add_realm(
        &mut self,
        outside: usize,
        router: SimRouter,
        outer: Option<IpAddr>,
    ) -> usize {
        let (inside, number) = (self.realms.len(), self.routers.len());
        self.realms.push(NetworkRealm {
            gateway: Some(number),
            owners: HashMap::new(),
        });
        if let Some(ip) = outer {
            self.realms[outside]
                .owners
                .insert(ip, AddressOwner::Router(number));
        }
        self.routers.push(RouterLink {
            router,
            inside,
            outside,
        });
        inside
    }

    /// Adds a host. Behind a router without translation its address is known outside, too.
    pub(super) fn add_host(&mut self, realm: usize, ip: IpAddr) -> usize {
        let host = self.hosts.len();
        self.hosts.push(realm);
        self.realms[realm]
            .owners
            .insert(ip, AddressOwner::Host(host));
        if let Some(gateway) = self.realms[realm].gateway
            && !self.routers[gateway].router.behaviour.translates
        {
            let outside = self.routers[gateway].outside;
            self.realms[outside]
                .owners
                .insert(ip, AddressOwner::Router(gateway));
        }
        host
    }

    /// Sends a packet from a host.
    pub(super) fn send(
        &mut self,
        host: usize,
        transport: Transport,
        from: SocketAddr,
        to: SocketAddr,
    ) -> PacketDelivery {
        let mut step = self.send_within(DEFAULT_HOP_LIMIT, host, transport, from, to);
        loop {
            match step {
                RouteStep::Delivery(delivery) => return delivery,
                RouteStep::Transit(transit) => step = self.route(transit),
            }
        }
    }

    /// Sends a packet from a host with a hop limit, up to the public network.
    pub(super) fn send_within(
        &mut self,
        hop_limit: u8,
        host: usize,
        transport: Transport,
        from: SocketAddr,
        to: SocketAddr,
    ) -> RouteStep {
        let transit = PacketTransit {
            hop_limit,
            realm: self.hosts[host],
            transport,
            from,
            to,
            came_through: None,
            is_public: false,
        };
        self.route(transit)
    }

    /// Returns a RST to the sender of a refused segment.
    pub(super) fn return_rst(
        &mut self,
        realm: usize,
        from: SocketAddr,
        to: SocketAddr,
    ) -> PacketDelivery {
        let (mut realm, mut from, mut to) = (realm, from, to);
        loop {
            let gateway = self.realms[realm].gateway;
            let passed = match self.realms[realm].owners.get(&to.ip()).copied() {
                Some(AddressOwner::Host(host)) => return PacketDelivery::Host { host, from, to },
                Some(AddressOwner::Router(number)) => {
                    let link = &mut self.routers[number];
                    let inner = link.router.inbound_rst(from, to);
                    inner.map(|inner| (link.inside, from, inner))
                }
                None => gateway.and_then(|number| {
                    let link = &mut self.routers[number];
                    let outer = link.router.outbound(Transport::Tcp, from, to);
                    outer.map(|outer| (link.outside, outer, to))
                }),
            };
            match passed {
                Some(next) => (realm, from, to) = next,
                None => return PacketDelivery::Lost,
            }
        }
    }

    /// Routes a packet to its destination, or to the public network. Each router takes a hop.
    pub(super) fn route(&mut self, mut transit: PacketTransit) -> RouteStep {
        for _ in 0..8 {
            if transit.realm == PUBLIC_REALM && !transit.is_public {
                transit.is_public = true;
                transit.hop_limit = transit.hop_limit.saturating_sub(self.public_hops);
                return match transit.hop_limit {
                    0 => PacketDelivery::Lost.into(),
                    _ => RouteStep::Transit(transit),
                };
            }
            match self.pass_router(&mut transit) {
                Some(delivery) => return delivery.into(),
                None => continue,
            }
        }
        PacketDelivery::Lost.into()
    }

    /// Passes one router; or returns the end of the packet's way.
    fn pass_router(&mut self, transit: &mut PacketTransit) -> Option<PacketDelivery> {
        let PacketTransit {
            realm,
            transport,
            from,
            to,
            came_through,
            ..
        } = *transit;
        match self.realms[realm].owners.get(&to.ip()).copied() {
            Some(AddressOwner::Host(host)) => return Some(PacketDelivery::Host { host, from, to }),
            Some(AddressOwner::Router(number)) => {
                let link = &mut self.routers[number];
                if came_through == Some(number) && !link.router.behaviour.hairpins {
                    return Some(PacketDelivery::Lost);
                }
                let Some(inner) = link.router.inbound(transport, from, to) else {
                    link.router.note_stranger(transport, from, to);
                    let drops = link.router.to_strangers == StrangerPolicy::Drop;
                    return Some(if drops || transport == Transport::Udp {
                        PacketDelivery::Lost
                    } else {
                        PacketDelivery::Refused { realm, from, to }
                    });
                };
                (transit.to, transit.realm) = (inner, link.inside);
                transit.hop_limit -= 1;
            }
            None => {
                let Some(number) = self.realms[realm].gateway else {
                    return Some(PacketDelivery::Lost);
                };
                transit.hop_limit -= 1;
                // An expired packet leaves no mapping.
                if transit.hop_limit > 0 {
                    let link = &mut self.routers[number];
                    let Some(outer) = link.router.outbound(transport, from, to) else {
                        return Some(PacketDelivery::Lost);
                    };
                    (transit.from, transit.realm) = (outer, link.outside);
                    transit.came_through = Some(number);
                }
            }
        }
        (transit.hop_limit == 0).then_some(PacketDelivery::Lost)
    }
}
