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

/// Reaction of a router to a packet of a stranger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StrangerPolicy {
    Drop,
    /// Answers a SYN with RST (RFC 5382 REQ-4 forbids it; some do).
    Refuse,
    /// Takes the packet as its own, as Linux's `masquerade` without a filter does: a SYN gets an
    /// RST, and a datagram's flow occupies the outer port towards that stranger.
    Receive,
}

#[derive(Debug)]
pub(super) struct SimRouter {
    pub(super) behaviour: NatBehaviour,
    /// Reaction to packets of strangers.
    pub(super) to_strangers: StrangerPolicy,
    /// Outer address; firewalls have none.
    outer: Option<IpAddr>,
    entries: Vec<NatEntry>,
    /// Entry of each session: transport, inner socket, remote socket.
    sessions: HashMap<(Transport, SocketAddr, SocketAddr), usize>,
    /// Sessions of these that have had a packet of the remote socket.
    answered: HashSet<(Transport, SocketAddr, SocketAddr)>,
    /// Outer ports that belong to flows of strangers: outer socket, remote socket.
    taken: HashSet<(SocketAddr, SocketAddr)>,
    random: fastrand::Rng,
}

impl SimRouter {
    pub(super) fn new(behaviour: NatBehaviour, outer: Option<IpAddr>, seed: u64) -> Self {
        let (entries, sessions) = (Vec::new(), HashMap::new());
        Self {
            behaviour,
            to_strangers: StrangerPolicy::Drop,
            outer,
            entries,
            sessions,
            answered: HashSet::new(),
            taken: HashSet::new(),
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
            None => self.untaken_entry_for(transport, from, to),
        };
        self.sessions.insert(session, at);
        self.entries[at].sent.insert(to);
        Some(self.entries[at].outer)
    }

    /// Returns the entry of a new session: with another port if the usual one belongs to a flow of
    /// that stranger.
    fn untaken_entry_for(
        &mut self,
        transport: Transport,
        inner: SocketAddr,
        to: SocketAddr,
    ) -> usize {
        let at = self.entry_for(transport, inner, to);
        if transport == Transport::Tcp || !self.taken.contains(&(self.entries[at].outer, to)) {
            return at;
        }
        let outer = SocketAddr::new(self.entries[at].outer.ip(), self.random.u16(1024..));
        self.entries.push(NatEntry {
            transport,
            inner,
            scope: (Some(to.ip()), Some(to.port())),
            outer,
            sent: HashSet::new(),
        });
        self.entries.len() - 1
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
        let at = self.admitting_entry(transport, from, to)?;
        let inner = self.entries[at].inner;
        self.sessions.insert((transport, inner, from), at);
        self.answered.insert((transport, inner, from));
        Some(inner)
    }

    /// Maps a RST to its inner destination; `None`: filtered. Before the remote socket's first
    /// packet it ends the session, as in Linux.
    pub(super) fn inbound_rst(&mut self, from: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
        let at = self.admitting_entry(Transport::Tcp, from, to)?;
        let inner = self.entries[at].inner;
        let session = (Transport::Tcp, inner, from);
        if self.to_strangers == StrangerPolicy::Receive && !self.answered.contains(&session) {
            self.sessions.remove(&session);
            self.entries[at].sent.remove(&from);
        }
        Some(inner)
    }

    /// Returns the entry that admits a packet.
    fn admitting_entry(
        &mut self,
        transport: Transport,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<usize> {
        if transport == Transport::Udp && !self.behaviour.udp {
            return None;
        }
        let at = self
            .entries
            .iter()
            .position(|entry| entry.transport == transport && entry.outer == to);
        let at = at.or_else(|| self.untranslated_entry(transport, to))?;
        let sent = &self.entries[at].sent;
        let is_allowed = match self.behaviour.filtering {
            FilteringBehaviour::EndpointIndependent => true,
            FilteringBehaviour::AddressDependent => sent.iter().any(|sent| sent.ip() == from.ip()),
            FilteringBehaviour::AddressAndPortDependent => sent.contains(&from),
        };
        is_allowed.then_some(at)
    }

    /// Records the flow of a refused packet, where it leaves one.
    pub(super) fn note_stranger(&mut self, transport: Transport, from: SocketAddr, to: SocketAddr) {
        if self.to_strangers == StrangerPolicy::Receive && transport == Transport::Udp {
            self.taken.insert((to, from));
        }
    }

    fn untranslated_entry(&mut self, transport: Transport, to: SocketAddr) -> Option<usize> {
        (!self.behaviour.translates)
            .then(|| self.entry_for(transport, to, SocketAddr::from(([0, 0, 0, 0], 0))))
    }
}
