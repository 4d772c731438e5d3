//! First probes, to unproven addresses: paced and counted.

use std::time::{Duration, Instant};

use crate::punch::candidate::{PairKey, Transport};

use super::pairs::{CandidatePair, TcpPairState};
use super::{AgentAction, AgentPhase, PunchAgent};

/// Upper bound of the interval between tries of a pair.
pub(super) const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time of a dial.
///
/// Meanwhile the kernel repeats its SYN once, with the same number. A new dial has another number,
/// which a NAT with connection tracking treats as a forgery once it has seen both SYNs (Linux:
/// `SYN_SENT2`; decision 34).
const DIAL_TIMEOUT: Duration = Duration::from_secs(2);

impl PunchAgent {
    /// Sends the next first probe or dial, if one is due.
    pub(super) fn send_checks(&mut self, now: Instant) {
        let is_searching = matches!(self.phase, AgentPhase::Searching { .. });
        // One per pace interval, however many pairs are due.
        while is_searching
            && self.next_check_allowed <= now
            && self.counts.tries < self.settings.max_tries_in_all
        {
            let Some(key) = self.next_due_pair(now) else {
                return;
            };
            self.try_pair(key, now);
            self.next_check_allowed = now + self.settings.pace_interval;
        }
    }

    /// Returns the pairs to probe.
    ///
    /// A follower continues on pairs that responded: the leader may still wait for a probe from
    /// there, and sends to an address that was not offered only after one.
    fn open_pairs(&self) -> impl Iterator<Item = &CandidatePair> {
        let (retry_valid, settings) = (!self.is_leader(), &self.settings);
        let open = self
            .pairs
            .iter()
            .filter(move |pair| pair.is_checkable(settings.max_tries, retry_valid));
        open.filter(|pair| self.pairs.tries_at(pair.key.remote.ip()) < settings.max_tries_per_ip)
    }

    /// Returns the due pair with the fewest tries, the best of these.
    fn next_due_pair(&self, now: Instant) -> Option<PairKey> {
        let due = self.open_pairs().filter(|pair| pair.next_due <= now);
        due.min_by_key(|pair| pair.tries).map(|pair| pair.key)
    }

    fn try_pair(&mut self, key: PairKey, now: Instant) {
        let Some(pair) = self.pairs.get_mut(&key) else {
            return;
        };
        let wait = retry_interval(self.settings.retry_interval, pair.tries, MAX_RETRY_INTERVAL);
        pair.tries += 1;
        pair.first_tried.get_or_insert(now);
        pair.next_due = now + wait;
        self.counts.tries += 1;
        match key.transport {
            Transport::Udp => {
                let probe = self.new_probe();
                self.send_probe(key, probe, true, now);
            }
            Transport::Tcp => {
                pair.stream = TcpPairState::Dialing;
                self.actions.push(AgentAction::Dial {
                    key,
                    timeout: DIAL_TIMEOUT,
                });
            }
        }
    }

    pub(super) fn next_check_at(&self) -> Option<Instant> {
        if self.counts.tries >= self.settings.max_tries_in_all {
            return None;
        }
        self.open_pairs()
            .map(|pair| pair.next_due.max(self.next_check_allowed))
            .min()
    }

    /// Returns the end of the search: its timeout, or the session's expiry before it.
    pub(super) fn search_deadline(&self) -> Instant {
        // The follower waits for the leader's message, and decides alone only without one.
        let grace = if self.is_leader() {
            Duration::ZERO
        } else {
            self.settings.search_timeout
        };
        (self.deadline + grace).min(self.session.expires_at)
    }

    pub(super) fn give_up_if_late(&mut self, now: Instant) {
        if !matches!(self.phase, AgentPhase::Searching { .. }) || now < self.search_deadline() {
            return;
        }
        let reason = match () {
            () if now >= self.session.expires_at => super::PunchFailure::Expired,
            () if self.remotes.is_empty() && self.peer_nonce.is_none() => {
                super::PunchFailure::NoOffer
            }
            () => super::PunchFailure::NoPath,
        };
        // The peer falls back at once instead of after its own timeout.
        self.actions
            .push(AgentAction::Signal(super::PunchMessage::FallBack));
        self.fall_back(reason);
    }
}

/// Returns the delay after the nth try, from 0: grows by 8/5 each time.
pub(super) fn retry_interval(first: Duration, tries: u32, max_interval: Duration) -> Duration {
    let mut wait = first;
    for _ in 0..tries.min(16) {
        wait = (wait * 8 / 5).min(max_interval);
    }
    wait.min(max_interval)
}
