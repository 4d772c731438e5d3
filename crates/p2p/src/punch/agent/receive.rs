//! Handles received probes: an unverified one gets no response, a verified one exactly one.

use std::net::SocketAddr;
use std::time::Instant;

use crate::punch::candidate::{PairKey, Transport};
use crate::punch::probe::Probe;

use super::pairs::PairProgress;
use super::{AgentPhase, PunchAgent};

impl PunchAgent {
    pub(super) fn handle_datagram(
        &mut self,
        base: SocketAddr,
        from: SocketAddr,
        bytes: &[u8],
        now: Instant,
    ) {
        // The socket reports IPv4 peers as mapped addresses; pairs use the IPv4 form.
        let remote = SocketAddr::new(from.ip().to_canonical(), from.port());
        let key = PairKey {
            transport: Transport::Udp,
            base,
            remote,
        };
        if let Some(probe) = self.verify_probe(bytes) {
            self.handle_probe(key, &probe, now);
        }
    }

    pub(super) fn verify_probe(&mut self, bytes: &[u8]) -> Option<Probe> {
        let probe = Probe::decode(bytes, &self.session).ok();
        // The first verified nonce pins the peer's process: a restarted one needs a new session.
        let probe = probe.filter(|probe| self.peer_nonce.is_none_or(|nonce| nonce == probe.nonce));
        match probe {
            Some(probe) => self.peer_nonce = Some(probe.nonce),
            None => self.counts.dropped += 1,
        }
        probe
    }

    /// Handles a probe, its request first.
    ///
    /// Over TCP the response must go before a nomination that the same probe's response may cause.
    pub(super) fn handle_probe(&mut self, key: PairKey, probe: &Probe, now: Instant) {
        if let Some(number) = probe.request {
            // A replay from elsewhere must not make this side send to a victim.
            if !self.replay_window.insert(number) && !self.is_offered(&key) {
                self.counts.replayed += 1;
                return;
            }
            self.handle_request(key, number, probe, now);
        }
        if let Some(number) = probe.response {
            self.handle_response(key, number, probe.nomination, now);
        }
    }

    /// Returns whether the peer has offered this address.
    ///
    /// A repeated request from there is answered again: a faster attacker on the path could
    /// otherwise have the true one dropped.
    fn is_offered(&self, key: &PairKey) -> bool {
        self.pairs.get(key).is_some_and(|pair| pair.offered)
    }

    /// Responds, with a request of its own while the pair is not proven.
    fn handle_request(&mut self, key: PairKey, number: u64, probe: &Probe, now: Instant) {
        if !self.accepts_request(&key, now) || !self.discover_pair(key, now) {
            return;
        }
        let mut answer = Probe {
            response: Some(number),
            mapped_addr: Some(key.remote),
            ..self.new_probe()
        };
        let agreed = probe
            .nomination
            .filter(|generation| self.try_agree(key, *generation));
        answer.nomination = agreed;
        // The response in the same probe already shows that the pair works. Over TCP a further
        // request would be
        // answered after the nomination, and TLS would read that answer as its own bytes (decision
        // 35).
        let trying = self.pairs.get(&key).is_some_and(|pair| {
            pair.progress == PairProgress::Trying
                && !probe
                    .response
                    .is_some_and(|number| pair.awaits_response(number))
        });
        let is_request = trying
            && agreed.is_none()
            && matches!(
                self.phase,
                AgentPhase::Searching { .. } | AgentPhase::Nominating(_)
            );
        self.send_probe(key, answer, is_request, now);
        if agreed.is_some() {
            self.settle_as_follower(key, now);
        }
    }

    /// Returns whether a request is answered: after the session's expiry only on the pair in use,
    /// on the relay never.
    fn accepts_request(&self, key: &PairKey, now: Instant) -> bool {
        match &self.phase {
            AgentPhase::Searching { .. } | AgentPhase::Nominating(_) => {
                now < self.session.expires_at
            }
            AgentPhase::Direct(direct) => {
                direct.key == *key
                    || (now < self.session.expires_at && key.transport == Transport::Udp)
            }
            AgentPhase::Relayed | AgentPhase::Ended(_) => false,
        }
    }

    fn handle_response(&mut self, key: PairKey, number: u64, nominates: Option<u16>, now: Instant) {
        let is_response = self
            .pairs
            .get_mut(&key)
            .is_some_and(|pair| pair.take_response(number, now));
        if !is_response {
            return;
        }
        match &mut self.phase {
            AgentPhase::Searching { first_valid: first } => {
                first.get_or_insert(now);
            }
            AgentPhase::Nominating(nomination)
                if nominates == Some(nomination.generation) && nomination.key == key =>
            {
                self.use_pair(key, now);
            }
            AgentPhase::Direct(direct) if direct.key == key => self.note_peer_alive(now),
            _ => (),
        }
    }
}
