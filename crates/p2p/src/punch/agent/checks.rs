//! First probes, to unproven addresses: paced and counted.

use std::time::{Duration, Instant};

use crate::punch::candidate::{PairKey, Transport};

use super::opening::may_have_nat;
use super::pairs::{CandidatePair, TcpPairState};
use super::{AgentAction, AgentPhase, DialOpening, PunchAgent};

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

    /// Returns the number of further tries that the limits of a pair, of its address and of the
    /// session permit.
    pub(super) fn tries_left(&self, pair: &CandidatePair) -> u32 {
        let (settings, at_ip) = (&self.settings, self.pairs.tries_at(pair.key.remote.ip()));
        let of_ip = settings.max_tries_per_ip.saturating_sub(at_ip);
        let in_all = settings.max_tries_in_all.saturating_sub(self.counts.tries);
        let of_pair = settings.max_tries.saturating_sub(pair.tries);
        of_pair.min(of_ip).min(in_all)
    }

    /// Returns the due pair with the fewest tries, the best of these.
    ///
    /// Pairs with a NAT in between come first: the peer counts on it to be open soon.
    fn next_due_pair(&self, now: Instant) -> Option<PairKey> {
        let due = self.open_pairs().filter(|pair| self.due_at(pair) <= now);
        due.min_by_key(|pair| (pair.tries, !may_have_nat(pair.key.remote.ip())))
            .map(|pair| pair.key)
    }

    fn try_pair(&mut self, key: PairKey, now: Instant) {
        let Some(pair) = self.pairs.get(&key) else {
            return;
        };
        match key.transport {
            Transport::Udp => self.try_datagram(key, self.opening_hop_limit(pair), now),
            Transport::Tcp => self.dial(key, self.dial_opening(pair, now), now),
        }
    }

    fn try_datagram(&mut self, key: PairKey, opening: Option<u8>, now: Instant) {
        let openings = u32::from(opening.is_some());
        self.note_try(key, openings, 1 - openings, now);
        match opening {
            Some(hop_limit) => self
                .actions
                .push(AgentAction::SendOpening { key, hop_limit }),
            None => {
                let probe = self.new_probe();
                self.send_probe(key, probe, true, now);
            }
        }
    }

    fn dial(&mut self, key: PairKey, opening: Option<DialOpening>, now: Instant) {
        // Both count: the peer may be close enough for the first SYN, too.
        self.note_try(key, u32::from(opening.is_some()), 1, now);
        if let Some(pair) = self.pairs.get_mut(&key) {
            pair.stream = TcpPairState::Dialing;
        }
        self.actions.push(AgentAction::Dial {
            key,
            timeout: DIAL_TIMEOUT,
            opening,
        });
    }

    fn note_try(&mut self, key: PairKey, openings: u32, probes: u32, now: Instant) {
        let Some(pair) = self.pairs.get_mut(&key) else {
            return;
        };
        let earlier = pair.tries - pair.opening_tries;
        let first = self.settings.retry_interval;
        pair.next_due = now + retry_interval(first, earlier, MAX_RETRY_INTERVAL);
        pair.last_tried = Some(now);
        if probes > 0 {
            pair.first_tried.get_or_insert(now);
        }
        pair.opening_tries += openings;
        pair.tries += openings + probes;
        self.counts.tries += openings + probes;
    }

    pub(super) fn next_check_at(&self) -> Option<Instant> {
        if self.counts.tries >= self.settings.max_tries_in_all {
            return None;
        }
        self.open_pairs()
            .map(|pair| self.due_at(pair).max(self.next_check_allowed))
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
