//! First probes: to addresses that have not proven themselves, hence paced and counted.

use std::time::{Duration, Instant};

use crate::punch::candidate::{Key, Transport};

use super::pairs::{Pair, Stream};
use super::{Action, Agent, Phase};

/// Intervals between the tries of a pair grow no further.
pub(super) const LONGEST: Duration = Duration::from_secs(1);
/// A dial takes so long at most. Meanwhile the kernel says its SYN once more, with the same number. A new dial has another one, which
/// a NAT that follows connections takes for a forgery once it has seen the SYNs of both sides (Linux: `SYN_SENT2`).
const DIAL: Duration = Duration::from_secs(2);

impl Agent {
    /// The next first probe or dial, if one is due.
    pub(super) fn check(&mut self, now: Instant) {
        let looking = matches!(self.phase, Phase::Looking { .. });
        while looking && self.free <= now && self.counts.tries < self.settings.tries_in_all {
            let Some(key) = self.due(now) else { return };
            self.try_pair(key, now);
            self.free = now + self.settings.pace;
        }
    }

    /// Pairs that are still to be probed. A follower goes on where it has had an answer: the leader may still wait for one,
    /// and asks an address that was not offered to it only when a probe comes from there.
    fn open(&self) -> impl Iterator<Item = &Pair> {
        let (again, settings) = (!self.leads(), &self.settings);
        let open = self.pairs.iter().filter(move |pair| pair.is_open(settings.tries, again));
        open.filter(|pair| self.pairs.tries_at(pair.key.remote.ip()) < settings.tries_per_ip)
    }

    /// Of the pairs that are due: the one that was tried least, of these the best.
    fn due(&self, now: Instant) -> Option<Key> {
        let due = self.open().filter(|pair| pair.next <= now);
        due.min_by_key(|pair| pair.tries).map(|pair| pair.key)
    }

    fn try_pair(&mut self, key: Key, now: Instant) {
        let Some(pair) = self.pairs.get_mut(&key) else { return };
        let wait = interval(self.settings.interval, pair.tries, LONGEST);
        pair.tries += 1;
        pair.tried.get_or_insert(now);
        pair.next = now + wait;
        self.counts.tries += 1;
        match key.transport {
            Transport::Udp => {
                let probe = self.probe();
                self.send(key, probe, true, now);
            }
            Transport::Tcp => {
                pair.stream = Stream::Dialling;
                self.actions.push(Action::Dial { key, patience: DIAL });
            }
        }
    }

    pub(super) fn next_check(&self) -> Option<Instant> {
        if self.counts.tries >= self.settings.tries_in_all {
            return None;
        }
        self.open().map(|pair| pair.next.max(self.free)).min()
    }

    /// When looking ends: the deadline, or the session's end before it.
    pub(super) fn too_late(&self) -> Instant {
        // The follower waits for the leader's word, and decides alone only when none comes.
        let grace = if self.leads() { Duration::ZERO } else { self.settings.patience };
        (self.deadline + grace).min(self.session.until)
    }

    pub(super) fn give_up_if_late(&mut self, now: Instant) {
        if !matches!(self.phase, Phase::Looking { .. }) || now < self.too_late() {
            return;
        }
        let reason = match () {
            () if now >= self.session.until => super::Reason::Expired,
            () if self.remotes.is_empty() && self.peer.is_none() => super::Reason::NoOffer,
            () => super::Reason::NoPath,
        };
        self.actions.push(Action::Tell(super::Message::Relay));
        self.fall_back(reason);
    }
}

/// After the nth try, from 0: grows by 8/5 each time.
pub(super) fn interval(first: Duration, tries: u32, longest: Duration) -> Duration {
    let mut wait = first;
    for _ in 0..tries.min(16) {
        wait = (wait * 8 / 5).min(longest);
    }
    wait.min(longest)
}
