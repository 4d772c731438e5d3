//! One side of one pair of workers: the machine that finds a direct way, or settles for the relay.
//!
//! Events in, actions out, time an argument. Both sides offer candidates through the rendezvous, probe the pairs that these
//! make (`checks`, `streams`), and answer each other's probes (`inbox`). The leader, by order of identities, takes the best
//! pair that works and tells so over that very pair; when the follower agrees, both have it (`nominate`). Whatever happens,
//! each side is on a pair, on the relay or at an end within two patiences of the settings: nobody hangs.
//!
//! The relay is a way from the first moment, if it is allowed; the direct one replaces it when it is there.

mod candidates;
mod checks;
mod nominate;
mod pairs;
mod receive;
mod replay_window;
mod tcp;
#[cfg(test)]
mod tests;
mod types;

use std::time::Instant;

use crate::punch::candidate::{Candidate, Key};
use crate::punch::probe::Probe;
use crate::punch::session::{Role, Session};

pub use types::{Action, Counts, Event, Message, Reason, Settings, State};

use nominate::{Direct, Nomination};
use pairs::{Local, Pairs};
use replay_window::Window;

/// See the module.
#[derive(Debug)]
pub struct Agent {
    session: Session,
    settings: Settings,
    nonce: u64,
    /// The last ask's number.
    number: u64,
    locals: Vec<Local>,
    remotes: Vec<Candidate>,
    pairs: Pairs,
    /// The peer's nonce, once something of it verified.
    peer: Option<u64>,
    window: Window,
    phase: Phase,
    /// The last nomination: made, as the leader; agreed to, as the follower.
    generation: u16,
    /// When it is too late, in [`Phase::Looking`].
    deadline: Instant,
    /// When the next first probe may go.
    free: Instant,
    counts: Counts,
    told: Option<Instant>,
    actions: Vec<Action>,
}

/// Where the machine is.
#[derive(Debug)]
enum Phase {
    /// It probes. `first`: when the first pair turned out to work.
    Looking {
        first: Option<Instant>,
    },
    /// The leader asks the follower to take a pair.
    Nominating(Nomination),
    /// Both have a pair.
    Direct(Direct),
    Relayed,
    Ended(Reason),
}

impl Agent {
    /// One side of a session. `nonce`: drawn at random. The first actions come with the first event.
    pub fn new(session: Session, settings: Settings, nonce: u64, now: Instant) -> Self {
        let deadline = now + settings.patience;
        let actions = if settings.relay { vec![Action::UseRelay] } else { Vec::new() };
        Self {
            session,
            settings,
            nonce,
            number: 0,
            locals: Vec::new(),
            remotes: Vec::new(),
            pairs: Pairs::default(),
            peer: None,
            window: Window::default(),
            phase: Phase::Looking { first: None },
            generation: 0,
            deadline,
            free: now,
            counts: Counts::default(),
            told: None,
            actions,
        }
    }

    /// Something happened, at this time. What is to be done, in this order.
    pub fn take(&mut self, event: Event, now: Instant) -> Vec<Action> {
        if !matches!(self.phase, Phase::Ended(_)) {
            self.happen(event, now);
            self.advance(now);
            self.wake();
        }
        std::mem::take(&mut self.actions)
    }

    fn happen(&mut self, event: Event, now: Instant) {
        match event {
            Event::Local { kind, transport, addr, base } => self.local(kind, transport, addr, base, now),
            Event::Gathered => self.gathered(),
            Event::Told(Message::Offer(candidates)) => self.offered(&candidates, now),
            Event::Told(Message::Relay) => self.fall_back(Reason::PeerGaveUp),
            Event::Datagram { base, from, bytes } => self.datagram(base, from, &bytes, now),
            Event::Connected(key) => self.connected(key, now),
            Event::Read { key, bytes } => self.read(key, &bytes, now),
            Event::Ended(key) => self.stream_ended(key, now),
            Event::Heard => self.heard(now),
            Event::Tick => (),
        }
    }

    /// What time alone brings about. A nomination that fails leads back to looking.
    fn advance(&mut self, now: Instant) {
        self.nominate_again(now);
        if matches!(self.phase, Phase::Looking { .. }) {
            self.turn_strangers_away(now);
            self.consider(now);
            self.check(now);
            self.give_up_if_late(now);
        }
        self.keep_alive(now);
    }

    /// Where it is.
    pub fn state(&self) -> State {
        match &self.phase {
            Phase::Looking { .. } | Phase::Nominating(_) => State::Looking,
            Phase::Direct(direct) => State::Direct(direct.key),
            Phase::Relayed => State::Relayed,
            Phase::Ended(reason) => State::Ended(*reason),
        }
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Whether it leads.
    pub fn role(&self) -> Role {
        self.session.role
    }

    /// The round trip of a pair, if it was measured.
    pub fn round_trip(&self, key: &Key) -> Option<std::time::Duration> {
        self.pairs.get(key)?.rtt
    }

    fn leads(&self) -> bool {
        self.session.role == Role::Leader
    }

    fn wake(&mut self) {
        let next = self.next_wake();
        if next != self.told {
            self.told = next;
            self.actions.extend(next.map(|at| Action::Wake { at }));
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        match &self.phase {
            Phase::Looking { first } => {
                let times = [Some(self.too_late()), self.next_check(), self.next_choice(*first), self.next_stranger()];
                times.into_iter().flatten().min()
            }
            Phase::Nominating(nomination) => Some(nomination.next),
            Phase::Direct(direct) => direct.next,
            Phase::Relayed | Phase::Ended(_) => None,
        }
    }

    /// A probe that says nothing yet but who it is from.
    fn probe(&self) -> Probe {
        let (from, nonce) = (self.session.role, self.nonce);
        Probe { from, nonce, ask: None, answer: None, nominates: None, seen: None }
    }

    /// Sends or writes a probe over a pair; if it asks, the pair waits for the answer.
    fn send(&mut self, key: Key, mut probe: Probe, asks: bool, now: Instant) {
        if asks {
            self.number += 1;
            probe.ask = Some(self.number);
            if let Some(pair) = self.pairs.get_mut(&key) {
                pair.asked(self.number, now);
            }
        }
        let bytes = probe.encode(&self.session);
        self.actions.push(match key.transport {
            crate::punch::Transport::Udp => Action::Send { key, bytes },
            crate::punch::Transport::Tcp => Action::Write { key, bytes },
        });
    }
}
