//! Networks, the routers between them, and their hosts: routing of packets.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::punch::candidate::Transport;

use super::router::SimRouter;

pub(super) const PUBLIC_REALM: usize = 0;

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

#[derive(Debug)]
pub(super) struct SimNetwork {
    realms: Vec<NetworkRealm>,
    routers: Vec<RouterLink>,
    hosts: Vec<usize>,
}

impl SimNetwork {
    pub(super) fn new() -> Self {
        Self {
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
        self.route(self.hosts[host], transport, from, to)
    }

    /// Sends a packet into a network.
    pub(super) fn route(
        &mut self,
        realm: usize,
        transport: Transport,
        from: SocketAddr,
        to: SocketAddr,
    ) -> PacketDelivery {
        let (mut realm, mut from, mut to, mut came_through) = (realm, from, to, None);
        for _ in 0..8 {
            match self.realms[realm].owners.get(&to.ip()).copied() {
                Some(AddressOwner::Host(host)) => return PacketDelivery::Host { host, from, to },
                Some(AddressOwner::Router(number)) => {
                    let link = &mut self.routers[number];
                    if came_through == Some(number) && !link.router.behaviour.hairpins {
                        return PacketDelivery::Lost;
                    }
                    let Some(inner) = link.router.inbound(transport, from, to) else {
                        let refuses = link.router.refuses && transport == Transport::Tcp;
                        return if refuses {
                            PacketDelivery::Refused { realm, from, to }
                        } else {
                            PacketDelivery::Lost
                        };
                    };
                    (to, realm) = (inner, link.inside);
                }
                None => {
                    let Some(number) = self.realms[realm].gateway else {
                        return PacketDelivery::Lost;
                    };
                    let link = &mut self.routers[number];
                    let Some(outer) = link.router.outbound(transport, from, to) else {
                        return PacketDelivery::Lost;
                    };
                    (from, realm, came_through) = (outer, link.outside, Some(number));
                }
            }
        }
        PacketDelivery::Lost
    }
}
