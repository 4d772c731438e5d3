//! Probes that come: what does not verify gets no answer, what does gets exactly one.

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
        let probe = probe.filter(|probe| self.peer_nonce.is_none_or(|nonce| nonce == probe.nonce));
        match probe {
            Some(probe) => self.peer_nonce = Some(probe.nonce),
            None => self.counts.dropped += 1,
        }
        probe
    }

    /// The ask first: on a stream, its answer must go before a nomination that the answer in the same probe may cause.
    pub(super) fn handle_probe(&mut self, key: PairKey, probe: &Probe, now: Instant) {
        if let Some(number) = probe.request {
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

    /// Where the peer has offered to be, a repeated ask is answered once more: otherwise somebody between who is faster, and
    /// sends it on from elsewhere, could have the true one thrown away.
    fn is_offered(&self, key: &PairKey) -> bool {
        self.pairs.get(key).is_some_and(|pair| pair.offered)
    }

    /// Answers, and asks in the same probe while the pair has not been shown to work.
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
        // The answer that comes with the ask shows that the pair works. On a stream, another ask would be answered after the
        // nomination, and that answer be read as the first bytes of what follows.
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

    /// After the session's end only the pair in use is answered; where the relay was settled for, nothing is.
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
