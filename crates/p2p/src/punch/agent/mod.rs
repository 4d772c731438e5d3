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

use crate::punch::candidate::{Candidate, PairKey};
use crate::punch::probe::Probe;
use crate::punch::session::{PunchSession, SessionRole};

pub use types::{
    AgentAction, AgentCounts, AgentEvent, AgentState, PunchFailure, PunchMessage, PunchSettings,
};

use nominate::{DirectPair, PairNomination};
use pairs::{CheckList, LocalCandidate};
use replay_window::ReplayWindow;

/// See the module.
#[derive(Debug)]
pub struct PunchAgent {
    session: PunchSession,
    settings: PunchSettings,
    nonce: u64,
    /// The last ask's number.
    last_request: u64,
    locals: Vec<LocalCandidate>,
    remotes: Vec<Candidate>,
    pairs: CheckList,
    /// The peer's nonce, once something of it verified.
    peer_nonce: Option<u64>,
    replay_window: ReplayWindow,
    phase: AgentPhase,
    /// The last nomination: made, as the leader; agreed to, as the follower.
    generation: u16,
    /// When it is too late, in [`Phase::Searching`].
    deadline: Instant,
    /// When the next first probe may go.
    next_check_allowed: Instant,
    counts: AgentCounts,
    requested_wake: Option<Instant>,
    actions: Vec<AgentAction>,
}

/// Where the machine is.
#[derive(Debug)]
enum AgentPhase {
    /// It probes. `first`: when the first pair turned out to work.
    Searching {
        first_valid: Option<Instant>,
    },
    /// The leader asks the follower to take a pair.
    Nominating(PairNomination),
    /// Both have a pair.
    Direct(DirectPair),
    Relayed,
    Ended(PunchFailure),
}

impl PunchAgent {
    /// One side of a session. `nonce`: drawn at random. The first actions come with the first event.
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

    /// Something happened, at this time. What is to be done, in this order.
    pub fn handle_event(&mut self, event: AgentEvent, now: Instant) -> Vec<AgentAction> {
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

    /// What time alone brings about. A nomination that fails leads back to looking.
    fn advance(&mut self, now: Instant) {
        self.send_nomination(now);
        if matches!(self.phase, AgentPhase::Searching { .. }) {
            self.reject_silent_connections(now);
            self.nominate_best(now);
            self.send_checks(now);
            self.give_up_if_late(now);
        }
        self.send_keepalive(now);
    }

    /// Where it is.
    pub fn state(&self) -> AgentState {
        match &self.phase {
            AgentPhase::Searching { .. } | AgentPhase::Nominating(_) => AgentState::Searching,
            AgentPhase::Direct(direct) => AgentState::Direct(direct.key),
            AgentPhase::Relayed => AgentState::Relayed,
            AgentPhase::Ended(reason) => AgentState::Ended(*reason),
        }
    }

    /// What it has counted.
    pub fn counts(&self) -> AgentCounts {
        self.counts
    }

    /// Whether it leads.
    pub fn role(&self) -> SessionRole {
        self.session.role
    }

    /// The round trip of a pair, if it was measured.
    pub fn round_trip(&self, key: &PairKey) -> Option<std::time::Duration> {
        self.pairs.get(key)?.rtt
    }

    fn is_leader(&self) -> bool {
        self.session.role == SessionRole::Leader
    }

    fn request_wake(&mut self) {
        let next = self.next_wake();
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

    /// A probe that says nothing yet but who it is from.
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

    /// Sends or writes a probe over a pair; if it asks, the pair waits for the answer.
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
