//! Candidates of both sides, and the pairs they make.

use std::net::SocketAddr;
use std::time::Instant;

use crate::punch::candidate::{Candidate, Key, Kind, MOST, Transport, priority_of_pair};

use super::pairs::{Local, priority_of_base};
use super::{Action, Agent, Message, Phase};

impl Agent {
    pub(super) fn local(&mut self, kind: Kind, transport: Transport, addr: SocketAddr, base: SocketAddr, now: Instant) {
        let candidate = Candidate::new(kind, transport, addr, self.preference(transport, addr));
        let known = |local: &Local| local.candidate.addr == candidate.addr && local.candidate.transport == transport;
        if self.locals.len() >= MOST || self.locals.iter().any(known) {
            return;
        }
        let is_new = !self.locals.iter().any(|local| local.base == base && local.candidate.transport == transport);
        self.locals.push(Local { candidate, base });
        if is_new && transport == Transport::Tcp {
            self.actions.push(Action::Listen { base });
        }
        self.pair_up(now);
    }

    /// The transport that is wanted, then IPv6 (where fewer NATs are), then what came first.
    fn preference(&self, transport: Transport, addr: SocketAddr) -> u16 {
        let wanted = u16::from(transport == self.settings.prefer) << 15;
        let six = u16::from(addr.is_ipv6()) << 14;
        let order = u16::try_from(MOST.saturating_sub(self.locals.len())).unwrap_or(0);
        wanted | six | order
    }

    pub(super) fn gathered(&mut self) {
        let candidates = self.locals.iter().map(|local| local.candidate).collect();
        self.actions.push(Action::Tell(Message::Offer(candidates)));
    }

    pub(super) fn offered(&mut self, candidates: &[Candidate], now: Instant) {
        if self.remotes.is_empty() && matches!(self.phase, Phase::Looking { .. }) {
            self.deadline = now + self.settings.patience;
        }
        let loopback = self.locals.iter().any(|local| local.candidate.addr.ip().is_loopback());
        for candidate in candidates.iter().take(MOST) {
            let known = |one: &Candidate| one.addr == candidate.addr && one.transport == candidate.transport;
            if self.remotes.iter().any(known) {
                continue;
            }
            if self.remotes.len() < MOST && candidate.check(loopback).is_ok() {
                self.remotes.push(*candidate);
            } else {
                self.counts.refused += 1;
            }
        }
        self.pair_up(now);
    }

    /// Makes the pairs that can be made of what is known. Those that are there already stay as they are.
    fn pair_up(&mut self, now: Instant) {
        for at in 0..self.locals.len() {
            let Local { candidate, base } = self.locals[at];
            for remote in self.remotes.clone() {
                let key = Key { transport: candidate.transport, base, remote: remote.addr };
                if remote.transport == candidate.transport && key.fits() && !self.is_own(remote.addr) {
                    let priority = self.priority(candidate.priority, remote.priority);
                    self.pairs.note(key, priority, true, now);
                }
            }
        }
    }

    /// Two workers in two private networks may have the same address: then it leads back here.
    fn is_own(&self, addr: SocketAddr) -> bool {
        self.locals.iter().any(|local| local.candidate.kind == Kind::Host && local.candidate.addr == addr)
    }

    fn priority(&self, own: u32, peers: u32) -> u64 {
        if self.leads() { priority_of_pair(own, peers) } else { priority_of_pair(peers, own) }
    }

    /// Notes a pair whose remote half was not offered: an authentic probe, or a connection, came from there. `false`: there
    /// is no such socket, or there are too many of them.
    pub(super) fn discover(&mut self, key: Key, now: Instant) -> bool {
        if self.pairs.get(&key).is_some() {
            return true;
        }
        let Some(own) = priority_of_base(&self.locals, key.transport, key.base) else { return false };
        let preference = self.preference(key.transport, key.remote);
        let peers = Candidate::new(Kind::Discovered, key.transport, key.remote, preference);
        let priority = self.priority(own, peers.priority);
        self.pairs.note(key, priority, false, now)
    }
}
