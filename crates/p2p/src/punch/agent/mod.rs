//! A side of a pair of workers: the state machine that finds a direct connection or falls back to
//! the relay.
//!
//! Events in, actions out, time as an argument. Both sides offer candidates through the rendezvous,
//! open their NATs (`opening`), probe the resulting pairs (`checks`, `tcp`), and respond to each other's probes (`receive`). The
//! leader takes the best valid pair and nominates it over that very pair; when the follower agrees,
//! both have it (`nominate`). Each side reaches a pair, the relay or a failure within two search
//! timeouts.
//!
//! If the relay is allowed it is the path from the first moment; the direct connection replaces it.

mod candidates;
mod checks;
mod nominate;
mod opening;
mod pairs;
mod receive;
mod replay_window;
mod tcp;
#[cfg(test)]
mod tests;
mod types;

use std::time::Instant;

use crate::punch::candidate::{Candidate, PairKey};
use crate::punch::probe::Probe;
use crate::punch::session::{PunchSession, SessionRole};

pub use types::{
    AgentAction, AgentCounts, AgentEvent, AgentState, DialOpening, PunchFailure, PunchMessage,
    PunchSettings,
};

pub use opening::OPENING_PERIOD;

use nominate::{DirectPair, PairNomination};
use opening::ObserverTimes;
use pairs::{CheckList, LocalCandidate};
use replay_window::ReplayWindow;

/// State machine of one session; see the module.
#[derive(Debug)]
pub struct PunchAgent {
    session: PunchSession,
    settings: PunchSettings,
    nonce: u64,
    /// Number of the last request.
    last_request: u64,
    locals: Vec<LocalCandidate>,
    observers: ObserverTimes,
    remotes: Vec<Candidate>,
    pairs: CheckList,
    /// Nonce of the peer, once a probe of it verified.
    peer_nonce: Option<u64>,
    replay_window: ReplayWindow,
    phase: AgentPhase,
    /// Last nomination: sent, as the leader; accepted, as the follower.
    generation: u16,
    /// End of the search, in [`AgentPhase::Searching`].
    deadline: Instant,
    /// Time at which the next first probe may go.
    next_check_allowed: Instant,
    counts: AgentCounts,
    requested_wake: Option<Instant>,
    actions: Vec<AgentAction>,
}

/// Phase of the state machine.
#[derive(Debug)]
enum AgentPhase {
    /// Probing. `first_valid`: time at which the first pair became valid.
    Searching {
        first_valid: Option<Instant>,
    },
    /// Leader waits for the follower to take a pair.
    Nominating(PairNomination),
    /// Both sides have a pair.
    Direct(DirectPair),
    Relayed,
    Ended(PunchFailure),
}

impl PunchAgent {
    /// Creates one side of a session. `nonce`: random. The first actions come with the first event.
    pub fn new(session: PunchSession, settings: PunchSettings, nonce: u64, now: Instant) -> Self {
        let deadline = now + settings.search_timeout;
        let actions = if settings.allow_relay {
            vec![AgentAction::UseRelay]
        } else {
            Vec::new()
        };
        Self {
            session,
            settings,
            nonce,
            last_request: 0,
            locals: Vec::new(),
            observers: ObserverTimes::default(),
            remotes: Vec::new(),
            pairs: CheckList::default(),
            peer_nonce: None,
            replay_window: ReplayWindow::default(),
            phase: AgentPhase::Searching { first_valid: None },
            generation: 0,
            deadline,
            next_check_allowed: now,
            counts: AgentCounts::default(),
            requested_wake: None,
            actions,
        }
    }

    /// Handles an event, and returns the actions in their order.
    pub fn handle_event(&mut self, event: AgentEvent, now: Instant) -> Vec<AgentAction> {
        // After the end nothing is answered: the session's sockets are about to close.
        if !matches!(self.phase, AgentPhase::Ended(_)) {
            self.dispatch_event(event, now);
            self.advance(now);
            self.request_wake();
        }
        std::mem::take(&mut self.actions)
    }

    fn dispatch_event(&mut self, event: AgentEvent, now: Instant) {
        match event {
            AgentEvent::LocalCandidate {
                kind,
                transport,
                addr,
                base,
            } => self.add_local(kind, transport, addr, base, now),
            AgentEvent::ObserverAsked { transport, base } => {
                self.observers.note_request(transport, base, now)
            }
            AgentEvent::Gathered => self.send_offer(),
            AgentEvent::PeerMessage(PunchMessage::Offer(candidates)) => {
                self.add_remotes(&candidates, now)
            }
            AgentEvent::PeerMessage(PunchMessage::FallBack) => {
                self.fall_back(PunchFailure::PeerGaveUp)
            }
            AgentEvent::Datagram { base, from, bytes } => {
                self.handle_datagram(base, from, &bytes, now)
            }
            AgentEvent::Connected(key) => self.handle_connected(key, now),
            AgentEvent::Read { key, bytes } => self.handle_read(key, &bytes, now),
            AgentEvent::Disconnected(key) => self.handle_disconnected(key, now),
            AgentEvent::PeerAlive => self.note_peer_alive(now),
            AgentEvent::Tick => (),
        }
    }

    /// Advances by time alone. A failed nomination leads back to the search.
    fn advance(&mut self, now: Instant) {
        // The nomination first: if it fails now, the search continues in the same step.
        self.send_nomination(now);
        if matches!(self.phase, AgentPhase::Searching { .. }) {
            self.reject_silent_connections(now);
            self.nominate_best(now);
            self.send_checks(now);
            self.give_up_if_late(now);
        }
        self.send_keepalive(now);
    }

    /// Returns the state.
    pub fn state(&self) -> AgentState {
        match &self.phase {
            AgentPhase::Searching { .. } | AgentPhase::Nominating(_) => AgentState::Searching,
            AgentPhase::Direct(direct) => AgentState::Direct(direct.key),
            AgentPhase::Relayed => AgentState::Relayed,
            AgentPhase::Ended(reason) => AgentState::Ended(*reason),
        }
    }

    /// Returns the counters.
    pub fn counts(&self) -> AgentCounts {
        self.counts
    }

    /// Returns the role.
    pub fn role(&self) -> SessionRole {
        self.session.role
    }

    /// Returns the round trip of a pair, if it was measured.
    pub fn round_trip(&self, key: &PairKey) -> Option<std::time::Duration> {
        self.pairs.get(key)?.rtt
    }

    fn is_leader(&self) -> bool {
        self.session.role == SessionRole::Leader
    }

    fn request_wake(&mut self) {
        let next = self.next_wake();
        // Repeating an unchanged wakeup would make the driver reset its timer on each event.
        if next != self.requested_wake {
            self.requested_wake = next;
            self.actions.extend(next.map(|at| AgentAction::Wake { at }));
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        match &self.phase {
            AgentPhase::Searching { first_valid: first } => {
                let times = [
                    Some(self.search_deadline()),
                    self.next_check_at(),
                    self.choice_time(*first),
                    self.next_rejection(),
                ];
                times.into_iter().flatten().min()
            }
            AgentPhase::Nominating(nomination) => Some(nomination.next_send_at),
            AgentPhase::Direct(direct) => direct.next_keepalive,
            AgentPhase::Relayed | AgentPhase::Ended(_) => None,
        }
    }

    /// Creates a probe that only identifies its sender.
    fn new_probe(&self) -> Probe {
        let (from, nonce) = (self.session.role, self.nonce);
        Probe {
            sender: from,
            nonce,
            request: None,
            response: None,
            nomination: None,
            mapped_addr: None,
        }
    }

    /// Sends a probe over a pair; a request is recorded until its response.
    fn send_probe(&mut self, key: PairKey, mut probe: Probe, is_request: bool, now: Instant) {
        if is_request {
            self.last_request += 1;
            probe.request = Some(self.last_request);
            if let Some(pair) = self.pairs.get_mut(&key) {
                pair.record_request(self.last_request, now);
            }
        }
        let bytes = probe.encode(&self.session);
        self.actions.push(match key.transport {
            crate::punch::Transport::Udp => AgentAction::Send { key, bytes },
            crate::punch::Transport::Tcp => AgentAction::Write { key, bytes },
        });
    }
}
