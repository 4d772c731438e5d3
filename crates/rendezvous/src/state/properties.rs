//! Properties of the state under random actions: each call gets one answer, messages arrive once
//! and in order, sessions are private, and nothing is left behind.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::tests::{CountingRng, test_key, worker_id, worker_ticket};
use super::*;
use nearpath_p2p::message::{
    CallRefusal, OfferedCandidate, RelayedFrame, SessionIdHex, SessionMessage,
};

const NAMES: [&str; 4] = ["a", "b", "c", "leader"];
const JOBS: [&str; 2] = ["one", "two"];

#[derive(Debug, Clone)]
enum StateStep {
    Connect {
        job: usize,
        name: usize,
        life: u64,
    },
    Disconnect {
        line: usize,
    },
    Call {
        line: usize,
        peer: usize,
        within: u32,
    },
    SendMessage {
        line: usize,
        session: usize,
    },
    RelayFrame {
        line: usize,
        session: usize,
    },
    HangUp {
        line: usize,
        session: usize,
    },
    Report {
        line: usize,
        to: Option<usize>,
    },
    Advance {
        millis: u64,
    },
}

fn any_step() -> impl Strategy<Value = StateStep> {
    let connection = || 0..12_usize;
    prop_oneof![
        3 => (0..2_usize, 0..4_usize, 1..40_u64).prop_map(|(job, name, life)| StateStep::Connect { job, name, life }),
        1 => connection().prop_map(|line| StateStep::Disconnect { line }),
        4 => (connection(), 0..4_usize, 0..8000_u32).prop_map(|(line, peer, within)| StateStep::Call { line, peer, within }),
        4 => (connection(), 0..12_usize).prop_map(|(line, session)| StateStep::SendMessage { line, session }),
        3 => (connection(), 0..12_usize).prop_map(|(line, session)| StateStep::RelayFrame { line, session }),
        1 => (connection(), 0..12_usize).prop_map(|(line, session)| StateStep::HangUp { line, session }),
        1 => (connection(), prop::option::of(0..4_usize)).prop_map(|(line, to)| StateStep::Report { line, to }),
        2 => (0..5000_u64).prop_map(|millis| StateStep::Advance { millis }),
    ]
}

/// The state, with everything that an observer outside knows.
struct StateWorld {
    state: RendezvousState<CountingRng>,
    now: ClockReading,
    millis: u64,
    connections: Vec<ControlConnectionId>,
    owners: HashMap<ControlConnectionId, (usize, usize)>,
    /// Calls without an answer, by connection and number.
    open_calls: HashSet<(ControlConnectionId, u32)>,
    calls: u32,
    sessions: Vec<SessionIdHex>,
    members: HashMap<[u8; 16], HashSet<(usize, usize)>>,
    /// Messages sent per session and sender, and how many have arrived; messages are numbered.
    sent_counts: HashMap<([u8; 16], (usize, usize)), u32>,
    received_counts: HashMap<([u8; 16], (usize, usize)), u32>,
}

impl StateWorld {
    fn new() -> Self {
        let limits = StateLimits {
            session_life: Duration::from_secs(20),
            max_kept_messages: 3,
            max_sessions: 5,
            max_waiting_calls: 3,
            ..StateLimits::default()
        };
        Self {
            state: RendezvousState::new(test_key(), limits, CountingRng::default()),
            now: ClockReading {
                at: Instant::now(),
                unix: 1000,
            },
            millis: 0,
            connections: Vec::new(),
            owners: HashMap::new(),
            open_calls: HashSet::new(),
            calls: 0,
            sessions: Vec::new(),
            members: HashMap::new(),
            sent_counts: HashMap::new(),
            received_counts: HashMap::new(),
        }
    }

    fn apply(&mut self, step: &StateStep) {
        match *step {
            StateStep::Connect { job, name, life } => self.connect(job, name, life),
            StateStep::Disconnect { line } => self.with_connection(line, |world, line| {
                world.state.disconnect(line);
                world.remove_connection(line);
            }),
            StateStep::Call { line, peer, within } => self.with_connection(line, |world, line| {
                world.calls += 1;
                world.open_calls.insert((line, world.calls));
                let message = WorkerMessage::Call {
                    call: world.calls,
                    peer: worker_id(NAMES[peer]),
                    about: String::new(),
                    within,
                    hello: None,
                };
                world.send(line, message);
            }),
            StateStep::SendMessage { line, session } => {
                self.with_session(line, session, Self::send_offer)
            }
            StateStep::HangUp { line, session } => {
                self.with_session(line, session, |world, line, session| {
                    world.send(line, WorkerMessage::CloseSession { session })
                });
            }
            StateStep::RelayFrame { line, session } => {
                self.with_session(line, session, |world, line, session| {
                    let relayed = RelayedFrame {
                        session,
                        number: line,
                        acknowledged: 0,
                        bytes: Bytes::from_static(b"bytes"),
                    };
                    let actions = world.state.relay_frame(line, session, relayed.encode());
                    world.check_actions(actions);
                })
            }
            StateStep::Report { line, to } => self.with_connection(line, |world, line| {
                world.send(
                    line,
                    WorkerMessage::Report {
                        to: to.map(|to| worker_id(NAMES[to])),
                        report: JobReport::Ready,
                    },
                );
            }),
            StateStep::Advance { millis } => self.advance(millis),
        }
    }

    fn with_connection(&mut self, at: usize, f: impl FnOnce(&mut Self, ControlConnectionId)) {
        if !self.connections.is_empty() {
            let connection = self.connections[at % self.connections.len()];
            f(self, connection);
        }
    }

    fn with_session(
        &mut self,
        connection: usize,
        at: usize,
        f: impl FnOnce(&mut Self, ControlConnectionId, SessionIdHex),
    ) {
        if !self.sessions.is_empty() {
            let session = self.sessions[at % self.sessions.len()];
            self.with_connection(connection, |world, line| f(world, line, session));
        }
    }

    fn connect(&mut self, job: usize, name: usize, life: u64) {
        let connection = self.owners.len() as ControlConnectionId;
        self.owners.insert(connection, (job, name));
        self.connections.push(connection);
        let ticket = worker_ticket(JOBS[job], NAMES[name], self.now.unix + life);
        let actions = self.state.connect(connection, &ticket, self.now);
        self.check_actions(actions);
    }

    /// Sends an offer whose candidate's port is the message's number.
    fn send_offer(&mut self, connection: ControlConnectionId, session: SessionIdHex) {
        let owner = self.owners[&connection];
        let member = self.members[&session.0].contains(&owner);
        let number = self.sent_counts.entry((session.0, owner)).or_default();
        *number += u32::from(member);
        let addr = ([10, 0, 0, 1], u16::try_from(*number).unwrap()).into();
        let candidate = nearpath_p2p::punch::Candidate::new(
            nearpath_p2p::punch::candidate::CandidateKind::Host,
            nearpath_p2p::punch::Transport::Udp,
            addr,
            0,
        );
        self.send(
            connection,
            WorkerMessage::SessionMessage {
                session,
                message: SessionMessage::Offer {
                    candidates: vec![OfferedCandidate::from(candidate)],
                },
            },
        );
    }

    fn send(&mut self, connection: ControlConnectionId, message: WorkerMessage) {
        let actions = self.state.handle_message(connection, message, self.now);
        self.check_actions(actions);
    }

    fn advance(&mut self, millis: u64) {
        self.millis += millis;
        let unix = 1000 + self.millis / 1000;
        self.now = ClockReading {
            at: self.now.at + Duration::from_millis(millis),
            unix,
        };
        let actions = self.state.run_due_timers(self.now);
        self.check_actions(actions);
        assert!(
            self.state.next_deadline().is_none_or(|at| at > self.now.at),
            "a tick does all that is due"
        );
    }

    fn remove_connection(&mut self, connection: ControlConnectionId) {
        self.connections.retain(|one| *one != connection);
        self.open_calls.retain(|(at, _)| *at != connection);
    }

    fn check_actions(&mut self, actions: Vec<RendezvousAction>) {
        for action in actions {
            match action {
                RendezvousAction::Close(to, _) => self.remove_connection(to),
                RendezvousAction::Relay(to, frame) => self.check_frame(to, &frame),
                RendezvousAction::Send(to, message) => {
                    assert!(
                        self.connections.contains(&to),
                        "no such connection: {message:?}"
                    );
                    self.check_message(to, message);
                }
            }
        }
    }

    fn check_message(&mut self, connection: ControlConnectionId, message: RendezvousMessage) {
        let owner = self.owners[&connection];
        match message {
            RendezvousMessage::Granted(granted) => self.check_grant(connection, &granted),
            RendezvousMessage::Refused { call, reason } => {
                assert!(
                    self.open_calls.remove(&(connection, call)),
                    "one answer a call"
                );
                assert!(!matches!(reason, CallRefusal::Unknown));
            }
            RendezvousMessage::SessionMessage { session, message } => {
                self.check_offer(owner, session, &message)
            }
            RendezvousMessage::SessionClosed { session, .. } => {
                assert!(self.sessions.contains(&session))
            }
            RendezvousMessage::Report { from, .. } => {
                let job = owner.0;
                assert!(
                    self.owners
                        .values()
                        .any(|(j, name)| *j == job && worker_id(NAMES[*name]) == from)
                );
            }
            RendezvousMessage::Undelivered { .. } => (),
            RendezvousMessage::Welcome(_) | RendezvousMessage::Close { .. } => {
                panic!("sent by the connection task, not by the state")
            }
        }
    }

    fn check_grant(
        &mut self,
        connection: ControlConnectionId,
        granted: &nearpath_p2p::message::SessionGrant,
    ) {
        if let Some(call) = granted.call {
            assert!(
                self.open_calls.remove(&(connection, call)),
                "one answer a call"
            );
        }
        let members = self.members.entry(granted.session.0).or_default();
        members.insert(self.owners[&connection]);
        assert!(members.len() <= 2);
        assert!(
            members
                .iter()
                .all(|(job, _)| *job == self.owners[&connection].0),
            "members of a session are of one job"
        );
        assert!(granted.expires <= self.now.unix + 20);
        if !self.sessions.contains(&granted.session) {
            self.sessions.push(granted.session);
        }
    }

    /// Checks that a frame comes from the other side of its session: its number is the sender's
    /// connection.
    fn check_frame(&self, connection: ControlConnectionId, frame: &Bytes) {
        let relayed = RelayedFrame::decode(frame).unwrap();
        let (from, to) = (self.owners[&relayed.number], self.owners[&connection]);
        assert!(
            self.connections.contains(&connection) && from != to,
            "forwarded to a closed connection, or back"
        );
        let members = &self.members[&relayed.session.0];
        assert!(
            members.contains(&from) && members.contains(&to),
            "only members of the session receive it"
        );
    }

    fn check_offer(
        &mut self,
        owner: (usize, usize),
        session: SessionIdHex,
        message: &SessionMessage,
    ) {
        let members = &self.members[&session.0];
        assert!(
            members.contains(&owner),
            "only members of the session receive it"
        );
        let from = *members.iter().find(|one| **one != owner).unwrap();
        let SessionMessage::Offer { candidates } = message else {
            panic!("{message:?}")
        };
        let received = self.received_counts.entry((session.0, from)).or_default();
        *received += 1;
        assert_eq!(
            u32::from(candidates[0].addr.port()),
            *received,
            "in order, and none is missing"
        );
        assert!(*received <= self.sent_counts[&(session.0, from)]);
    }
}

proptest! {
    #[test]
    fn the_state_keeps_its_invariants(steps in prop::collection::vec(any_step(), 1..150)) {
        let mut world = StateWorld::new();
        steps.iter().for_each(|step| world.apply(step));
        world.advance(10_000);
        prop_assert!(world.open_calls.is_empty(), "calls wait no longer than they asked for: {:?}", world.open_calls);
        for connection in world.connections.clone() {
            world.state.disconnect(connection);
            world.remove_connection(connection);
        }
        world.advance(60_000);
        prop_assert_eq!(world.state.sizes(), (0, 0, 0));
        prop_assert!(world.state.workers.is_empty() && world.state.jobs.is_empty() && world.state.timers.is_empty());
    }
}
