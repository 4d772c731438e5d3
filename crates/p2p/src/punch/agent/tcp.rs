//! TCP pairs: a pair is a connection, dialled or accepted; with simultaneous open it is both.
//!
//! Both sides listen and dial on one port. The leader speaks first, so that an unknown client of a
//! follower gets nothing. A NAT may refuse a SYN that comes too early: the dial is repeated, with
//! growing delays.

use std::time::{Duration, Instant};

use crate::punch::candidate::PairKey;

use super::checks::{MAX_RETRY_INTERVAL, retry_interval};
use super::pairs::{PairProgress, TcpPairState};
use super::{AgentAction, AgentPhase, PunchAgent, PunchFailure};

/// Time for an authenticated probe on a new connection; without one it is closed.
const FIRST_PROBE_TIMEOUT: Duration = Duration::from_secs(2);

impl PunchAgent {
    pub(super) fn handle_connected(&mut self, key: PairKey, now: Instant) {
        let is_searching = matches!(
            self.phase,
            AgentPhase::Searching { .. } | AgentPhase::Nominating(_)
        ) && now < self.session.expires_at;
        if !is_searching || !self.discover_pair(key, now) {
            self.actions.push(AgentAction::Close(key));
            return;
        }
        if let Some(pair) = self.pairs.get_mut(&key) {
            pair.stream = TcpPairState::Open;
            pair.next_due = now + FIRST_PROBE_TIMEOUT;
        }
        // The leader's request authenticates the connection before the follower says anything.
        if self.is_leader() {
            let probe = self.new_probe();
            self.send_probe(key, probe, true, now);
        }
    }

    /// Handles bytes of a connection; unauthenticated ones end it.
    pub(super) fn handle_read(&mut self, key: PairKey, bytes: &[u8], now: Instant) {
        if self
            .pairs
            .get(&key)
            .is_none_or(|pair| pair.stream != TcpPairState::Open)
        {
            return;
        }
        let Some(probe) = self.verify_probe(bytes) else {
            return self.reject_connection(key, now);
        };
        if let Some(pair) = self.pairs.get_mut(&key) {
            pair.next_due = now + FIRST_PROBE_TIMEOUT;
        }
        self.handle_probe(key, &probe, now);
    }

    fn reject_connection(&mut self, key: PairKey, now: Instant) {
        self.close_stream(key);
        self.handle_disconnected(key, now);
    }

    pub(super) fn reject_silent_connections(&mut self, now: Instant) {
        let late: Vec<PairKey> = self
            .silent_connections()
            .filter(|(_, until)| *until <= now)
            .map(|(key, _)| key)
            .collect();
        late.into_iter()
            .for_each(|key| self.reject_connection(key, now));
    }

    pub(super) fn next_rejection(&self) -> Option<Instant> {
        self.silent_connections().map(|(_, until)| until).min()
    }

    fn silent_connections(&self) -> impl Iterator<Item = (PairKey, Instant)> {
        let silent = |pair: &&super::pairs::CandidatePair| {
            pair.stream == TcpPairState::Open && pair.progress == PairProgress::Trying
        };
        self.pairs
            .iter()
            .filter(silent)
            .map(|pair| (pair.key, pair.next_due))
    }

    /// Handles the end of a connection or dial.
    ///
    /// The next dial waits for its turn only: the connection may have been open on this side alone,
    /// because the last packet of its handshake was lost. A connection that worked and ended does
    /// not come back.
    pub(super) fn handle_disconnected(&mut self, key: PairKey, now: Instant) {
        let first = self.settings.retry_interval;
        let Some(pair) = self.pairs.get_mut(&key) else {
            return;
        };
        pair.stream = TcpPairState::None;
        pair.next_due = pair
            .next_due
            .min(now + retry_interval(first, pair.tries, MAX_RETRY_INTERVAL));
        if pair.progress == PairProgress::Valid {
            pair.progress = PairProgress::Failed;
        }
        self.pairs.forget_unproven(&key);
        match &self.phase {
            AgentPhase::Nominating(nomination) if nomination.key == key => {
                self.nomination_failed(key, now)
            }
            AgentPhase::Direct(direct) if direct.key == key => self.fall_back_after_loss(),
            _ => (),
        }
    }

    fn fall_back_after_loss(&mut self) {
        // The peer may not have noticed: it falls back, too.
        self.actions
            .push(AgentAction::Signal(super::PunchMessage::FallBack));
        self.fall_back(PunchFailure::PairLost);
    }
}
