//! Probes that come: what does not verify gets no answer, what does gets exactly one.

use std::net::SocketAddr;
use std::time::Instant;

use crate::punch::candidate::{Key, Transport};
use crate::punch::probe::Probe;

use super::pairs::Progress;
use super::{Agent, Phase};

impl Agent {
    pub(super) fn datagram(&mut self, base: SocketAddr, from: SocketAddr, bytes: &[u8], now: Instant) {
        let remote = SocketAddr::new(from.ip().to_canonical(), from.port());
        let key = Key { transport: Transport::Udp, base, remote };
        if let Some(probe) = self.authentic(bytes) {
            self.probed(key, &probe, now);
        }
    }

    pub(super) fn authentic(&mut self, bytes: &[u8]) -> Option<Probe> {
        let probe = Probe::decode(bytes, &self.session).ok();
        let probe = probe.filter(|probe| self.peer.is_none_or(|nonce| nonce == probe.nonce));
        match probe {
            Some(probe) => self.peer = Some(probe.nonce),
            None => self.counts.dropped += 1,
        }
        probe
    }

    /// The ask first: on a stream, its answer must go before a nomination that the answer in the same probe may cause.
    pub(super) fn probed(&mut self, key: Key, probe: &Probe, now: Instant) {
        if let Some(number) = probe.ask {
            if !self.window.is_new(number) && !self.is_offered(&key) {
                self.counts.replayed += 1;
                return;
            }
            self.asked(key, number, probe, now);
        }
        if let Some(number) = probe.answer {
            self.answered(key, number, probe.nominates, now);
        }
    }

    /// Where the peer has offered to be, a repeated ask is answered once more: otherwise somebody between who is faster, and
    /// sends it on from elsewhere, could have the true one thrown away.
    fn is_offered(&self, key: &Key) -> bool {
        self.pairs.get(key).is_some_and(|pair| pair.offered)
    }

    /// Answers, and asks in the same probe while the pair has not been shown to work.
    fn asked(&mut self, key: Key, number: u64, probe: &Probe, now: Instant) {
        if !self.is_welcome(&key, now) || !self.discover(key, now) {
            return;
        }
        let mut answer = Probe { answer: Some(number), seen: Some(key.remote), ..self.probe() };
        let agrees = probe.nominates.filter(|generation| self.agree(key, *generation));
        answer.nominates = agrees;
        // The answer that comes with the ask shows that the pair works. On a stream, another ask would be answered after the
        // nomination, and that answer be read as the first bytes of what follows.
        let trying = self.pairs.get(&key).is_some_and(|pair| {
            pair.progress == Progress::Trying && !probe.answer.is_some_and(|number| pair.awaits(number))
        });
        let asks = trying && agrees.is_none() && matches!(self.phase, Phase::Looking { .. } | Phase::Nominating(_));
        self.send(key, answer, asks, now);
        if agrees.is_some() {
            self.settle_as_follower(key, now);
        }
    }

    /// After the session's end only the pair in use is answered; where the relay was settled for, nothing is.
    fn is_welcome(&self, key: &Key, now: Instant) -> bool {
        match &self.phase {
            Phase::Looking { .. } | Phase::Nominating(_) => now < self.session.until,
            Phase::Direct(direct) => {
                direct.key == *key || (now < self.session.until && key.transport == Transport::Udp)
            }
            Phase::Relayed | Phase::Ended(_) => false,
        }
    }

    fn answered(&mut self, key: Key, number: u64, nominates: Option<u16>, now: Instant) {
        let answered = self.pairs.get_mut(&key).is_some_and(|pair| pair.answered(number, now));
        if !answered {
            return;
        }
        match &mut self.phase {
            Phase::Looking { first } => {
                first.get_or_insert(now);
            }
            Phase::Nominating(nomination) if nominates == Some(nomination.generation) && nomination.key == key => {
                self.settle(key, now);
            }
            Phase::Direct(direct) if direct.key == key => self.heard(now),
            _ => (),
        }
    }
}
