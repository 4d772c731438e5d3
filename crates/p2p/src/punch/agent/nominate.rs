//! One pair for both: the leader chooses and asks, the follower agrees; then it is kept alive.
//!
//! A nomination goes over the pair itself and bears a number. The follower agrees to the newest; the leader has the pair
//! once that is said. A follower that has settled for the relay agrees to nothing, and a leader that gives up says so
//! through the rendezvous: so both end with the same, whichever packets are lost.

use std::time::{Duration, Instant};

use crate::punch::candidate::{Key, Transport};
use crate::punch::probe::Probe;

use super::checks::interval;
use super::pairs::{Pair, Progress, Stream};
use super::{Action, Agent, Message, Phase, Reason};

/// How often a nomination is sent over UDP.
const TRIES: u32 = 10;
/// How long one may take over TCP.
const STREAM_PATIENCE: Duration = Duration::from_secs(2);
/// A choice waits no longer for a better pair.
const LONGEST_CHOICE: Duration = Duration::from_millis(400);
/// A better pair that has to connect first has at least so long.
const CONNECTING: Duration = Duration::from_millis(50);
/// Between asks of a pair that does not answer any more, and how many of them there are.
const LAST_ASKS: (Duration, u32) = (Duration::from_secs(1), 5);

/// What the leader has asked the follower to take.
#[derive(Debug)]
pub(super) struct Nomination {
    pub(super) key: Key,
    pub(super) generation: u16,
    tries: u32,
    pub(super) next: Instant,
}

/// The pair that both have.
#[derive(Debug)]
pub(super) struct Direct {
    pub(super) key: Key,
    /// Asks since the peer was heard.
    unanswered: u32,
    /// When the next one goes; a TCP connection tells by itself that it has ended.
    pub(super) next: Option<Instant>,
}

impl Agent {
    /// The leader takes the best pair that works, once better ones have had their chance.
    pub(super) fn consider(&mut self, now: Instant) {
        let Phase::Looking { first } = self.phase else { return };
        if self.next_choice(first).is_none_or(|at| at > now) {
            return;
        }
        if let Some(key) = self.pairs.best_valid().map(|pair| pair.key) {
            self.generation += 1;
            let nomination = Nomination { key, generation: self.generation, tries: 0, next: now };
            self.phase = Phase::Nominating(nomination);
            self.nominate_again(now);
        }
    }

    /// When the leader chooses: when no better pair can be expected to work any more, and before it is too late.
    pub(super) fn next_choice(&self, first: Option<Instant>) -> Option<Instant> {
        let best = self.pairs.best_valid().filter(|_| self.leads())?;
        let first = first?;
        let better = |pair: &&Pair| pair.priority > best.priority && pair.progress == Progress::Trying && pair.offered;
        let times = self.pairs.iter().filter(better).map(|pair| hope(pair, best, first));
        let longest = (first + LONGEST_CHOICE).min(self.too_late());
        Some(times.max().unwrap_or(first).clamp(first.min(longest), longest))
    }

    pub(super) fn nominate_again(&mut self, now: Instant) {
        let Phase::Nominating(nomination) = &mut self.phase else { return };
        if nomination.next > now {
            return;
        }
        let (key, generation) = (nomination.key, nomination.generation);
        let tries = if key.transport == Transport::Tcp { 1 } else { TRIES };
        if nomination.tries >= tries || now >= self.session.until {
            return self.nomination_failed(key, now);
        }
        nomination.next = now
            + match key.transport {
                Transport::Udp => interval(self.settings.interval, nomination.tries, Duration::from_secs(1)),
                Transport::Tcp => STREAM_PATIENCE,
            };
        nomination.tries += 1;
        let probe = Probe { nominates: Some(generation), ..self.probe() };
        self.send(key, probe, true, now);
    }

    /// Back to looking: the next best pair, if there is one, or the end.
    pub(super) fn nomination_failed(&mut self, key: Key, now: Instant) {
        if let Some(pair) = self.pairs.get_mut(&key) {
            pair.progress = Progress::Failed;
        }
        self.close(key);
        self.phase = Phase::Looking { first: Some(now) };
        self.give_up_if_late(now);
        self.consider(now);
    }

    /// Whether the follower takes this pair: it is the newest nomination, or the newest once more. And it has worked from
    /// here, too (RFC 8445 section 7.3.1.5): somebody between, who is faster, could send the leader's word on from elsewhere.
    pub(super) fn agree(&mut self, key: Key, generation: u16) -> bool {
        let again = matches!(&self.phase, Phase::Direct(direct) if direct.key == key && generation == self.generation);
        let open = matches!(self.phase, Phase::Looking { .. } | Phase::Direct(_));
        let works = self.pairs.get(&key).is_some_and(|pair| pair.progress == Progress::Valid);
        let agrees = !self.leads() && open && works && (again || generation > self.generation);
        if agrees {
            self.generation = generation;
        }
        agrees
    }

    pub(super) fn settle_as_follower(&mut self, key: Key, now: Instant) {
        match &self.phase {
            Phase::Direct(direct) if direct.key == key => self.heard(now),
            _ => self.settle(key, now),
        }
    }

    /// This pair it is; all other connections are closed.
    pub(super) fn settle(&mut self, key: Key, now: Instant) {
        let next = (key.transport == Transport::Udp).then(|| now + self.settings.keep_alive);
        self.phase = Phase::Direct(Direct { key, unanswered: 0, next });
        self.close_all_but(Some(key));
        self.actions.push(Action::Use(key));
    }

    pub(super) fn heard(&mut self, now: Instant) {
        if let Phase::Direct(direct) = &mut self.phase {
            direct.unanswered = 0;
            direct.next = direct.next.map(|_| now + self.settings.keep_alive);
        }
    }

    pub(super) fn keep_alive(&mut self, now: Instant) {
        let Phase::Direct(direct) = &mut self.phase else { return };
        if direct.next.is_none_or(|next| next > now) {
            return;
        }
        let (wait, most) = LAST_ASKS;
        let key = direct.key;
        if direct.unanswered >= most {
            self.actions.push(Action::Tell(Message::Relay));
            return self.fall_back(Reason::Lost);
        }
        direct.unanswered += 1;
        direct.next = Some(now + wait);
        let probe = self.probe();
        self.send(key, probe, true, now);
    }

    /// To the relay if it is allowed, else to an end.
    pub(super) fn fall_back(&mut self, reason: Reason) {
        if matches!(self.phase, Phase::Relayed | Phase::Ended(_)) {
            return;
        }
        let was_direct = matches!(self.phase, Phase::Direct(_));
        self.close_all_but(None);
        if self.settings.relay {
            self.phase = Phase::Relayed;
            if was_direct {
                self.actions.push(Action::UseRelay);
            }
        } else {
            self.phase = Phase::Ended(reason);
            self.actions.push(Action::GiveUp(reason));
        }
    }

    fn close_all_but(&mut self, kept: Option<Key>) {
        let open = self.pairs.iter().filter(|pair| pair.stream != Stream::None && Some(pair.key) != kept);
        let keys: Vec<Key> = open.map(|pair| pair.key).collect();
        keys.into_iter().for_each(|key| self.close(key));
    }

    pub(super) fn close(&mut self, key: Key) {
        if let Some(pair) = self.pairs.get_mut(&key).filter(|pair| pair.stream != Stream::None) {
            pair.stream = Stream::None;
            self.actions.push(Action::Close(key));
        }
    }
}

/// How long a better pair is waited for. It would have answered within a round trip, and half of one for its delays; but
/// beside UDP, TCP has to connect first, perhaps after a SYN that came too early.
fn hope(pair: &Pair, best: &Pair, first: Instant) -> Instant {
    let rtt = best.rtt.unwrap_or_default();
    match pair.tried {
        _ if pair.key.transport == Transport::Tcp && best.key.transport == Transport::Udp => {
            first + (rtt * 4).max(CONNECTING)
        }
        Some(tried) => tried + rtt * 3 / 2,
        None => first + rtt / 2,
    }
}
