//! Pure model of a NAT or firewall: mapping, filtering, and answers along the session's mapping.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};

use crate::punch::candidate::Transport;
use crate::punch::nat::{FilteringBehaviour, MappingBehaviour, NatBehaviour};

#[derive(Debug)]
struct NatEntry {
    transport: Transport,
    inner: SocketAddr,
    /// Part of the destination that the mapping depends on.
    scope: (Option<IpAddr>, Option<u16>),
    outer: SocketAddr,
    sent: HashSet<SocketAddr>,
}

#[derive(Debug)]
pub(super) struct SimRouter {
    pub(super) behaviour: NatBehaviour,
    /// True if a refused SYN is answered with RST (RFC 5382 REQ-4 forbids it; some do).
    pub(super) refuses: bool,
    /// Outer address; firewalls have none.
    outer: Option<IpAddr>,
    entries: Vec<NatEntry>,
    /// Entry of each session: transport, inner socket, remote socket.
    sessions: HashMap<(Transport, SocketAddr, SocketAddr), usize>,
    random: fastrand::Rng,
}

impl SimRouter {
    pub(super) fn new(behaviour: NatBehaviour, outer: Option<IpAddr>, seed: u64) -> Self {
        let (entries, sessions) = (Vec::new(), HashMap::new());
        Self {
            behaviour,
            refuses: false,
            outer,
            entries,
            sessions,
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Maps an outgoing packet to its outer source; `None`: dropped.
    pub(super) fn outbound(
        &mut self,
        transport: Transport,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<SocketAddr> {
        if transport == Transport::Udp && !self.behaviour.udp {
            return None;
        }
        let session = (transport, from, to);
        let at = match self.sessions.get(&session) {
            Some(&at) => at,
            None => self.entry_for(transport, from, to),
        };
        self.sessions.insert(session, at);
        self.entries[at].sent.insert(to);
        Some(self.entries[at].outer)
    }

    fn entry_for(&mut self, transport: Transport, inner: SocketAddr, to: SocketAddr) -> usize {
        let scope = match self.behaviour.mapping {
            MappingBehaviour::EndpointIndependent => (None, None),
            MappingBehaviour::AddressDependent => (Some(to.ip()), None),
            MappingBehaviour::AddressAndPortDependent => (Some(to.ip()), Some(to.port())),
        };
        let same = |entry: &NatEntry| {
            (entry.transport, entry.inner, entry.scope) == (transport, inner, scope)
        };
        if let Some(at) = self.entries.iter().position(same) {
            return at;
        }
        let outer = self.free_outer_addr(transport, inner);
        self.entries.push(NatEntry {
            transport,
            inner,
            scope,
            outer,
            sent: HashSet::new(),
        });
        self.entries.len() - 1
    }

    fn free_outer_addr(&mut self, transport: Transport, inner: SocketAddr) -> SocketAddr {
        let Some(ip) = self.outer.filter(|_| self.behaviour.translates) else {
            return inner;
        };
        let mut port = if self.behaviour.preserves_ports {
            inner.port()
        } else {
            0
        };
        let is_taken = |port| {
            self.entries
                .iter()
                .any(|entry| entry.transport == transport && entry.outer.port() == port)
        };
        while port == 0 || is_taken(port) {
            port = self.random.u16(1024..);
        }
        SocketAddr::new(ip, port)
    }

    /// Maps an incoming packet to its inner destination; `None`: filtered.
    pub(super) fn inbound(
        &mut self,
        transport: Transport,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<SocketAddr> {
        if transport == Transport::Udp && !self.behaviour.udp {
            return None;
        }
        let at = self
            .entries
            .iter()
            .position(|entry| entry.transport == transport && entry.outer == to);
        let at = at.or_else(|| self.untranslated_entry(transport, to))?;
        let entry = &self.entries[at];
        let is_allowed = match self.behaviour.filtering {
            FilteringBehaviour::EndpointIndependent => true,
            FilteringBehaviour::AddressDependent => {
                entry.sent.iter().any(|sent| sent.ip() == from.ip())
            }
            FilteringBehaviour::AddressAndPortDependent => entry.sent.contains(&from),
        };
        let inner = entry.inner;
        is_allowed.then(|| {
            self.sessions.insert((transport, inner, from), at);
            inner
        })
    }

    fn untranslated_entry(&mut self, transport: Transport, to: SocketAddr) -> Option<usize> {
        (!self.behaviour.translates)
            .then(|| self.entry_for(transport, to, SocketAddr::from(([0, 0, 0, 0], 0))))
    }
}
