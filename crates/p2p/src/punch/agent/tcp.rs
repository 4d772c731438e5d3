//! TCP: a pair is a connection, dialled or accepted; by simultaneous open it is both.
//!
//! Both sides listen and dial on one port. The leader speaks first, so that a stranger who connects to a follower hears
//! nothing. A NAT may refuse a SYN that comes too early: the dial is made again, later and later.

use std::time::{Duration, Instant};

use crate::punch::candidate::Key;

use super::checks::{LONGEST, interval};
use super::pairs::{Progress, Stream};
use super::{Action, Agent, Phase, Reason};

/// A connection over which nothing authentic has come for so long is a stranger's.
const INTRODUCTION: Duration = Duration::from_secs(2);

impl Agent {
    pub(super) fn connected(&mut self, key: Key, now: Instant) {
        let looking = matches!(self.phase, Phase::Looking { .. } | Phase::Nominating(_)) && now < self.session.until;
        if !looking || !self.discover(key, now) {
            self.actions.push(Action::Close(key));
            return;
        }
        if let Some(pair) = self.pairs.get_mut(&key) {
            pair.stream = Stream::Open;
            pair.next = now + INTRODUCTION;
        }
        if self.leads() {
            let probe = self.probe();
            self.send(key, probe, true, now);
        }
    }

    /// A stranger's bytes end the connection.
    pub(super) fn read(&mut self, key: Key, bytes: &[u8], now: Instant) {
        if self.pairs.get(&key).is_none_or(|pair| pair.stream != Stream::Open) {
            return;
        }
        let Some(probe) = self.authentic(bytes) else { return self.turn_away(key, now) };
        if let Some(pair) = self.pairs.get_mut(&key) {
            pair.next = now + INTRODUCTION;
        }
        self.probed(key, &probe, now);
    }

    fn turn_away(&mut self, key: Key, now: Instant) {
        self.close(key);
        self.stream_ended(key, now);
    }

    pub(super) fn turn_strangers_away(&mut self, now: Instant) {
        let late: Vec<Key> = self.strangers().filter(|(_, until)| *until <= now).map(|(key, _)| key).collect();
        late.into_iter().for_each(|key| self.turn_away(key, now));
    }

    pub(super) fn next_stranger(&self) -> Option<Instant> {
        self.strangers().map(|(_, until)| until).min()
    }

    fn strangers(&self) -> impl Iterator<Item = (Key, Instant)> {
        let silent = |pair: &&super::pairs::Pair| pair.stream == Stream::Open && pair.progress == Progress::Trying;
        self.pairs.iter().filter(silent).map(|pair| (pair.key, pair.next))
    }

    /// The next dial waits its turn, not until a stranger would have been turned away: the connection may have been whole on this
    /// side alone, where the last packet of its handshake was lost. One that worked and ended does not come back.
    pub(super) fn stream_ended(&mut self, key: Key, now: Instant) {
        let first = self.settings.interval;
        let Some(pair) = self.pairs.get_mut(&key) else { return };
        pair.stream = Stream::None;
        pair.next = pair.next.min(now + interval(first, pair.tries, LONGEST));
        if pair.progress == Progress::Valid {
            pair.progress = Progress::Failed;
        }
        self.pairs.forget_stranger(&key);
        match &self.phase {
            Phase::Nominating(nomination) if nomination.key == key => self.nomination_failed(key, now),
            Phase::Direct(direct) if direct.key == key => self.stream_lost(),
            _ => (),
        }
    }

    fn stream_lost(&mut self) {
        self.actions.push(Action::Tell(super::Message::Relay));
        self.fall_back(Reason::Lost);
    }
}
