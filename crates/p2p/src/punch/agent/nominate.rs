//! Nomination of one pair for both sides: the leader nominates, the follower agrees; then it is
//! kept alive.
//!
//! A nomination goes over the pair itself and has a number. The follower agrees to the newest; the
//! leader has the pair once that agreement arrives. A follower on the relay agrees to nothing, and
//! a leader that gives up says so through the rendezvous. Both sides therefore end with the same
//! result, whichever packets are lost.

use std::time::{Duration, Instant};

use crate::punch::candidate::{PairKey, Transport};
use crate::punch::probe::Probe;

use super::checks::retry_interval;
use super::pairs::{CandidatePair, PairProgress, TcpPairState};
use super::{AgentAction, AgentPhase, PunchAgent, PunchFailure, PunchMessage};

/// Maximum of nominations sent over UDP.
const MAX_NOMINATION_TRIES: u32 = 10;
/// Time for a nomination over TCP.
const STREAM_NOMINATION_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum wait for a better pair.
const MAX_CHOICE_DELAY: Duration = Duration::from_millis(400);
/// Minimum wait for a better pair that has to connect first.
const MIN_CONNECT_DELAY: Duration = Duration::from_millis(50);
/// Interval between requests over a silent pair, and their maximum number.
const KEEPALIVE_RETRIES: (Duration, u32) = (Duration::from_secs(1), 5);

/// Pair that the leader has nominated.
#[derive(Debug)]
pub(super) struct PairNomination {
    pub(super) key: PairKey,
    pub(super) generation: u16,
    tries: u32,
    pub(super) next_send_at: Instant,
}

/// Pair that both sides have.
#[derive(Debug)]
pub(super) struct DirectPair {
    pub(super) key: PairKey,
    /// Requests since the last sign of life of the peer.
    unanswered: u32,
    /// Time of the next keepalive; a TCP connection reports its end itself.
    pub(super) next_keepalive: Option<Instant>,
}

impl PunchAgent {
    /// Nominates the best valid pair, once better ones had their chance.
    pub(super) fn nominate_best(&mut self, now: Instant) {
        let AgentPhase::Searching { first_valid: first } = self.phase else {
            return;
        };
        if self.choice_time(first).is_none_or(|at| at > now) {
            return;
        }
        if let Some(key) = self.pairs.best_valid().map(|pair| pair.key) {
            self.generation += 1;
            let nomination = PairNomination {
                key,
                generation: self.generation,
                tries: 0,
                next_send_at: now,
            };
            self.phase = AgentPhase::Nominating(nomination);
            self.send_nomination(now);
        }
    }

    /// Returns when the leader chooses: when no better pair can be expected, and before the search
    /// ends.
    pub(super) fn choice_time(&self, first: Option<Instant>) -> Option<Instant> {
        let best = self.pairs.best_valid().filter(|_| self.is_leader())?;
        let first = first?;
        let better = |pair: &&CandidatePair| {
            pair.priority > best.priority && pair.progress == PairProgress::Trying && pair.offered
        };
        let times = self
            .pairs
            .iter()
            .filter(better)
            .map(|pair| wait_for_better(pair, best, first));
        let max_wait = (first + MAX_CHOICE_DELAY).min(self.search_deadline());
        // `clamp` panics if its bounds cross, hence `first.min`.
        Some(
            times
                .max()
                .unwrap_or(first)
                .clamp(first.min(max_wait), max_wait),
        )
    }

    pub(super) fn send_nomination(&mut self, now: Instant) {
        let AgentPhase::Nominating(nomination) = &mut self.phase else {
            return;
        };
        if nomination.next_send_at > now {
            return;
        }
        let (key, generation) = (nomination.key, nomination.generation);
        // TCP delivers or breaks: repeating on the stream is useless.
        let tries = if key.transport == Transport::Tcp {
            1
        } else {
            MAX_NOMINATION_TRIES
        };
        if nomination.tries >= tries || now >= self.session.expires_at {
            return self.nomination_failed(key, now);
        }
        nomination.next_send_at = now
            + match key.transport {
                Transport::Udp => retry_interval(
                    self.settings.retry_interval,
                    nomination.tries,
                    Duration::from_secs(1),
                ),
                Transport::Tcp => STREAM_NOMINATION_TIMEOUT,
            };
        nomination.tries += 1;
        let probe = Probe {
            nomination: Some(generation),
            ..self.new_probe()
        };
        self.send_probe(key, probe, true, now);
    }

    /// Returns to the search: the next valid pair, or the end.
    pub(super) fn nomination_failed(&mut self, key: PairKey, now: Instant) {
        if let Some(pair) = self.pairs.get_mut(&key) {
            // Not nominated again: the follower had its chance on this pair.
            pair.progress = PairProgress::Failed;
        }
        self.close_stream(key);
        self.phase = AgentPhase::Searching {
            first_valid: Some(now),
        };
        self.give_up_if_late(now);
        self.nominate_best(now);
    }

    /// Returns whether the follower takes this pair: the newest nomination, or the same one again.
    ///
    /// The pair must have worked from here, too (RFC 8445 section 7.3.1.5): a faster attacker on
    /// the path could forward the leader's probe from another address.
    pub(super) fn try_agree(&mut self, key: PairKey, generation: u16) -> bool {
        let is_repeated = matches!(&self.phase, AgentPhase::Direct(direct) if direct.key == key && generation == self.generation);
        let is_open = matches!(
            self.phase,
            AgentPhase::Searching { .. } | AgentPhase::Direct(_)
        );
        let is_valid = self
            .pairs
            .get(&key)
            .is_some_and(|pair| pair.progress == PairProgress::Valid);
        let agrees = !self.is_leader()
            && is_open
            && is_valid
            && (is_repeated || generation > self.generation);
        if agrees {
            self.generation = generation;
        }
        agrees
    }

    pub(super) fn settle_as_follower(&mut self, key: PairKey, now: Instant) {
        match &self.phase {
            AgentPhase::Direct(direct) if direct.key == key => self.note_peer_alive(now),
            _ => self.use_pair(key, now),
        }
    }

    /// Selects the pair; all other connections are closed.
    pub(super) fn use_pair(&mut self, key: PairKey, now: Instant) {
        let next =
            (key.transport == Transport::Udp).then(|| now + self.settings.keepalive_interval);
        self.phase = AgentPhase::Direct(DirectPair {
            key,
            unanswered: 0,
            next_keepalive: next,
        });
        self.close_all_but(Some(key));
        self.actions.push(AgentAction::UsePair(key));
    }

    pub(super) fn note_peer_alive(&mut self, now: Instant) {
        if let AgentPhase::Direct(direct) = &mut self.phase {
            direct.unanswered = 0;
            direct.next_keepalive = direct
                .next_keepalive
                .map(|_| now + self.settings.keepalive_interval);
        }
    }

    pub(super) fn send_keepalive(&mut self, now: Instant) {
        let AgentPhase::Direct(direct) = &mut self.phase else {
            return;
        };
        if direct.next_keepalive.is_none_or(|next| next > now) {
            return;
        }
        let (interval, max_retries) = KEEPALIVE_RETRIES;
        let key = direct.key;
        if direct.unanswered >= max_retries {
            // The peer may still hold the pair; it falls back, too.
            self.actions
                .push(AgentAction::Signal(PunchMessage::FallBack));
            return self.fall_back(PunchFailure::PairLost);
        }
        direct.unanswered += 1;
        direct.next_keepalive = Some(now + interval);
        let probe = self.new_probe();
        self.send_probe(key, probe, true, now);
    }

    /// Falls back to the relay if it is allowed, else fails.
    pub(super) fn fall_back(&mut self, reason: PunchFailure) {
        if matches!(self.phase, AgentPhase::Relayed | AgentPhase::Ended(_)) {
            return;
        }
        let was_direct = matches!(self.phase, AgentPhase::Direct(_));
        self.close_all_but(None);
        if self.settings.allow_relay {
            self.phase = AgentPhase::Relayed;
            // The relay was announced at the start; only a lost direct pair returns to it.
            if was_direct {
                self.actions.push(AgentAction::UseRelay);
            }
        } else {
            self.phase = AgentPhase::Ended(reason);
            self.actions.push(AgentAction::GiveUp(reason));
        }
    }

    fn close_all_but(&mut self, kept: Option<PairKey>) {
        let open = self
            .pairs
            .iter()
            .filter(|pair| pair.stream != TcpPairState::None && Some(pair.key) != kept);
        let keys: Vec<PairKey> = open.map(|pair| pair.key).collect();
        keys.into_iter().for_each(|key| self.close_stream(key));
    }

    pub(super) fn close_stream(&mut self, key: PairKey) {
        if let Some(pair) = self
            .pairs
            .get_mut(&key)
            .filter(|pair| pair.stream != TcpPairState::None)
        {
            pair.stream = TcpPairState::None;
            self.actions.push(AgentAction::Close(key));
        }
    }
}

/// Returns how long to wait for a better pair.
///
/// A valid one would have responded within one and a half round trips. Beside UDP, TCP has
/// to connect first, perhaps after a SYN that came too early.
fn wait_for_better(pair: &CandidatePair, best: &CandidatePair, first: Instant) -> Instant {
    let rtt = best.rtt.unwrap_or_default();
    match pair.first_tried {
        _ if pair.key.transport == Transport::Tcp && best.key.transport == Transport::Udp => {
            first + (rtt * 4).max(MIN_CONNECT_DELAY)
        }
        Some(tried) => tried + rtt * 3 / 2,
        None => first + rtt / 2,
    }
}
