//! Candidates of both sides, and their pairs.

use std::net::SocketAddr;
use std::time::Instant;

use crate::punch::candidate::{
    Candidate, CandidateKind, MAX_CANDIDATES, PairKey, Transport, pair_priority,
};

use super::pairs::{LocalCandidate, priority_of_base};
use super::{AgentAction, AgentPhase, PunchAgent, PunchMessage};

impl PunchAgent {
    pub(super) fn add_local(
        &mut self,
        kind: CandidateKind,
        transport: Transport,
        addr: SocketAddr,
        base: SocketAddr,
        now: Instant,
    ) {
        let candidate = Candidate::new(
            kind,
            transport,
            addr,
            self.address_preference(transport, addr),
        );
        if kind == CandidateKind::Reflexive {
            self.observers.note_answer(transport, base, now);
        }
        let is_known = |local: &LocalCandidate| {
            local.candidate.addr == candidate.addr && local.candidate.transport == transport
        };
        if self.locals.len() >= MAX_CANDIDATES || self.locals.iter().any(is_known) {
            return;
        }
        let is_new = !self
            .locals
            .iter()
            .any(|local| local.base == base && local.candidate.transport == transport);
        self.locals.push(LocalCandidate {
            candidate,
            base,
            added: now,
        });
        // One listener per base: all its connections share the port.
        if is_new && transport == Transport::Tcp {
            self.actions.push(AgentAction::Listen { base });
        }
        self.pair_up(now);
    }

    /// Prefers the wanted transport, then IPv6 (fewer NATs), then earlier candidates.
    fn address_preference(&self, transport: Transport, addr: SocketAddr) -> u16 {
        let is_preferred = u16::from(transport == self.settings.preferred_transport) << 15;
        let is_ipv6 = u16::from(addr.is_ipv6()) << 14;
        let order = u16::try_from(MAX_CANDIDATES.saturating_sub(self.locals.len())).unwrap_or(0);
        is_preferred | is_ipv6 | order
    }

    pub(super) fn send_offer(&mut self) {
        let candidates = self.locals.iter().map(|local| local.candidate).collect();
        // The whole list each time: the peer ignores what it knows.
        self.actions
            .push(AgentAction::Signal(PunchMessage::Offer(candidates)));
    }

    pub(super) fn add_remotes(&mut self, candidates: &[Candidate], now: Instant) {
        // The search timeout starts with the offer: before it there was nothing to probe.
        if self.remotes.is_empty() && matches!(self.phase, AgentPhase::Searching { .. }) {
            self.deadline = now + self.settings.search_timeout;
        }
        let loopback = self
            .locals
            .iter()
            .any(|local| local.candidate.addr.ip().is_loopback());
        for candidate in candidates.iter().take(MAX_CANDIDATES) {
            let is_known = |one: &Candidate| {
                one.addr == candidate.addr && one.transport == candidate.transport
            };
            if self.remotes.iter().any(is_known) {
                continue;
            }
            // The bound holds over several offers, too.
            if self.remotes.len() < MAX_CANDIDATES && candidate.check_usable(loopback).is_ok() {
                self.remotes.push(*candidate);
            } else {
                self.counts.refused += 1;
            }
        }
        self.pair_up(now);
    }

    /// Creates the pairs of all known candidates. Existing pairs stay as they are.
    fn pair_up(&mut self, now: Instant) {
        for at in 0..self.locals.len() {
            let LocalCandidate {
                candidate, base, ..
            } = self.locals[at];
            // Cloned, as the loop changes `self`; it has at most 16 entries.
            for remote in self.remotes.clone() {
                let key = PairKey {
                    transport: candidate.transport,
                    base,
                    remote: remote.addr,
                };
                if remote.transport == candidate.transport
                    && key.is_routable()
                    && !self.is_own_address(remote.addr)
                {
                    let priority = self.priority_with(candidate.priority, remote.priority);
                    self.pairs.add_pair(key, priority, true, now);
                }
            }
        }
    }

    /// Returns whether the address is this machine's own: two private networks may use the same
    /// address.
    fn is_own_address(&self, addr: SocketAddr) -> bool {
        self.locals.iter().any(|local| {
            local.candidate.kind == CandidateKind::Host && local.candidate.addr == addr
        })
    }

    fn priority_with(&self, own: u32, peer_priority: u32) -> u64 {
        if self.is_leader() {
            pair_priority(own, peer_priority)
        } else {
            pair_priority(peer_priority, own)
        }
    }

    /// Adds a pair whose remote address was not offered, but sent an authenticated probe or a
    /// connection.
    ///
    /// `false`: unknown socket, or too many such pairs.
    pub(super) fn discover_pair(&mut self, key: PairKey, now: Instant) -> bool {
        if self.pairs.get(&key).is_some() {
            return true;
        }
        let Some(own) = priority_of_base(&self.locals, key.transport, key.base) else {
            return false;
        };
        let preference = self.address_preference(key.transport, key.remote);
        let peers = Candidate::new(
            CandidateKind::Discovered,
            key.transport,
            key.remote,
            preference,
        );
        let priority = self.priority_with(own, peers.priority);
        self.pairs.add_pair(key, priority, false, now)
    }
}
