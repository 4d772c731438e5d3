//! Networks, the routers between them, and the hosts in them: where a packet ends up.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use crate::punch::candidate::Transport;

use super::router::Router;

pub(super) const PUBLIC: usize = 0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    Host(usize),
    Router(usize),
}

#[derive(Debug, Default)]
struct Realm {
    gateway: Option<usize>,
    owners: HashMap<IpAddr, Owner>,
}

#[derive(Debug)]
struct Between {
    router: Router,
    inside: usize,
    outside: usize,
}

/// Where a packet ended up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// At a host, which sees these addresses.
    Host { host: usize, from: SocketAddr, to: SocketAddr },
    /// A router refuses it, towards the address from which it seemed to come.
    Refused { realm: usize, from: SocketAddr, to: SocketAddr },
    /// Nowhere.
    Lost,
}

#[derive(Debug)]
pub(super) struct Network {
    realms: Vec<Realm>,
    routers: Vec<Between>,
    hosts: Vec<usize>,
}

impl Network {
    pub(super) fn new() -> Self {
        Self { realms: vec![Realm::default()], routers: Vec::new(), hosts: Vec::new() }
    }

    /// A network behind a router.
    pub(super) fn behind(&mut self, outside: usize, router: Router, outer: Option<IpAddr>) -> usize {
        let (inside, number) = (self.realms.len(), self.routers.len());
        self.realms.push(Realm { gateway: Some(number), owners: HashMap::new() });
        if let Some(ip) = outer {
            self.realms[outside].owners.insert(ip, Owner::Router(number));
        }
        self.routers.push(Between { router, inside, outside });
        inside
    }

    /// A host; behind a router that does not translate, its address is known outside, too.
    pub(super) fn host(&mut self, realm: usize, ip: IpAddr) -> usize {
        let host = self.hosts.len();
        self.hosts.push(realm);
        self.realms[realm].owners.insert(ip, Owner::Host(host));
        if let Some(gateway) = self.realms[realm].gateway
            && !self.routers[gateway].router.behaviour.translates
        {
            let outside = self.routers[gateway].outside;
            self.realms[outside].owners.insert(ip, Owner::Router(gateway));
        }
        host
    }

    /// Sends a packet from a host.
    pub(super) fn send(&mut self, host: usize, transport: Transport, from: SocketAddr, to: SocketAddr) -> End {
        self.route(self.hosts[host], transport, from, to)
    }

    /// Sends a packet into a network.
    pub(super) fn route(&mut self, realm: usize, transport: Transport, from: SocketAddr, to: SocketAddr) -> End {
        let (mut realm, mut from, mut to, mut came_by) = (realm, from, to, None);
        for _ in 0..8 {
            match self.realms[realm].owners.get(&to.ip()).copied() {
                Some(Owner::Host(host)) => return End::Host { host, from, to },
                Some(Owner::Router(number)) => {
                    let between = &mut self.routers[number];
                    if came_by == Some(number) && !between.router.behaviour.hairpins {
                        return End::Lost;
                    }
                    let Some(inner) = between.router.inbound(transport, from, to) else {
                        let refuses = between.router.refuses && transport == Transport::Tcp;
                        return if refuses { End::Refused { realm, from, to } } else { End::Lost };
                    };
                    (to, realm) = (inner, between.inside);
                }
                None => {
                    let Some(number) = self.realms[realm].gateway else { return End::Lost };
                    let between = &mut self.routers[number];
                    let Some(outer) = between.router.outbound(transport, from, to) else { return End::Lost };
                    (from, realm, came_by) = (outer, between.outside, Some(number));
                }
            }
        }
        End::Lost
    }
}
