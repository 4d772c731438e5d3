//! Cases of the rendezvous state.

use super::*;
use nearpath_p2p::message::{
    Base64Bytes, CallRefusal, SessionCloseReason, SessionGrant, SessionIdHex, SessionMessage,
};
use nearpath_p2p::ticket::{RelayToken, WorkerTicket};

/// Distinct numbers suffice: no test reads the random bytes.
#[derive(Debug, Default)]
pub(super) struct CountingRng(u64);

impl SecretRng for CountingRng {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0 += 1;
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
    }
}

pub(super) fn test_key() -> RendezvousKey {
    RendezvousKey::new([1; 32])
}

pub(super) fn worker_id(name: &str) -> SpiffeId {
    SpiffeId::for_gateway("job", name)
}

pub(super) fn worker_ticket(job: &str, name: &str, until: u64) -> WorkerTicket {
    WorkerTicket {
        worker: worker_id(name),
        job: job.parse().unwrap(),
        leader: name == "leader",
        until,
    }
}

struct RendezvousFixture {
    state: RendezvousState<CountingRng>,
    now: ClockReading,
}

impl RendezvousFixture {
    fn new(limits: StateLimits) -> Self {
        Self {
            state: RendezvousState::new(test_key(), limits, CountingRng::default()),
            now: ClockReading {
                at: Instant::now(),
                unix: 1000,
            },
        }
    }

    fn advance(&mut self, span: Duration) -> Vec<RendezvousAction> {
        self.now = ClockReading {
            at: self.now.at + span,
            unix: self.now.unix + span.as_secs(),
        };
        self.state.run_due_timers(self.now)
    }

    fn connect(&mut self, connection: ControlConnectionId, name: &str) -> Vec<RendezvousAction> {
        self.state
            .connect(connection, &worker_ticket("sort", name, 5000), self.now)
    }

    fn call(&mut self, connection: ControlConnectionId, peer: &str) -> Vec<RendezvousAction> {
        let message = WorkerMessage::Call {
            call: 7,
            peer: worker_id(peer),
            about: "edge".into(),
            within: 1000,
            hello: Some(hello_bytes(200)),
        };
        self.state.handle_message(connection, message, self.now)
    }

    /// Creates a session of connection 1, `a`, with connection 2, `b`.
    fn session(&mut self) -> SessionIdHex {
        self.connect(1, "a");
        self.connect(2, "b");
        both_grants(&self.call(1, "b")).1.session
    }

    fn send_message(
        &mut self,
        connection: ControlConnectionId,
        session: SessionIdHex,
    ) -> Vec<RendezvousAction> {
        self.state.handle_message(
            connection,
            WorkerMessage::SessionMessage {
                session,
                message: SessionMessage::Relay,
            },
            self.now,
        )
    }
}

/// Returns the grants of the caller and the called side.
fn both_grants(actions: &[RendezvousAction]) -> (SessionGrant, SessionGrant) {
    match actions {
        [
            RendezvousAction::Send(_, RendezvousMessage::Granted(own)),
            RendezvousAction::Send(_, RendezvousMessage::Granted(others)),
        ] => (own.clone(), others.clone()),
        other => panic!("no grant: {other:?}"),
    }
}

fn hello_bytes(length: usize) -> Base64Bytes {
    Base64Bytes(vec![7; length].into())
}

fn refusal(connection: ControlConnectionId, reason: CallRefusal) -> Vec<RendezvousAction> {
    vec![RendezvousAction::Send(
        connection,
        RendezvousMessage::Refused { call: 7, reason },
    )]
}

#[test]
fn both_sides_get_the_same_grant_and_their_own_relay_token() {
    let mut fixture = RendezvousFixture::new(StateLimits::default());
    fixture.connect(1, "a");
    fixture.connect(2, "b");
    let (own, others) = both_grants(&fixture.call(1, "b"));
    assert_eq!(
        (own.session, own.secret, own.expires),
        (others.session, others.secret, others.expires)
    );
    assert_eq!(
        (own.call, others.call, own.peer, others.peer),
        (Some(7), None, worker_id("b"), worker_id("a"))
    );
    assert_eq!(
        (own.expires, own.lifetime_ms, &*others.about),
        (1600, 600_000, "edge")
    );
    assert_eq!(
        (own.hello, others.hello),
        (None, Some(hello_bytes(200))),
        "it is for the called side"
    );
    let token = RelayToken::verify(&own.relay_token.0, &test_key(), 1000).unwrap();
    assert_eq!(
        (token.worker, token.peer, token.session, token.until),
        (worker_id("a"), worker_id("b"), own.session, 5000)
    );
    assert_eq!(
        RelayToken::verify(&others.relay_token.0, &test_key(), 1000)
            .unwrap()
            .worker,
        worker_id("b")
    );
}

#[test]
fn a_session_ends_with_the_ticket_that_expires_first() {
    let mut fixture = RendezvousFixture::new(StateLimits::default());
    fixture.connect(1, "a");
    fixture
        .state
        .connect(2, &worker_ticket("sort", "b", 1100), fixture.now);
    assert_eq!(both_grants(&fixture.call(1, "b")).0.expires, 1100);
    let actions = fixture.advance(Duration::from_secs(100));
    assert!(
        actions.contains(&RendezvousAction::Close(2, CloseReason::Expired)),
        "{actions:?}"
    );
    assert!(actions.iter().any(|one| matches!(
        one,
        RendezvousAction::Send(
            1,
            RendezvousMessage::SessionClosed {
                reason: SessionCloseReason::Expired,
                ..
            }
        )
    )));
}

#[test]
fn an_endless_ticket_does_not_overflow_deadlines() {
    let mut fixture = RendezvousFixture::new(StateLimits {
        session_life: Duration::MAX,
        ..StateLimits::default()
    });
    for (line, name) in [(1, "a"), (2, "b")] {
        fixture
            .state
            .connect(line, &worker_ticket("sort", name, u64::MAX), fixture.now);
    }
    assert_eq!(both_grants(&fixture.call(1, "b")).0.expires, u64::MAX);
    assert!(fixture.state.next_deadline().is_some());
}

#[test]
fn a_call_waits_for_its_peer_up_to_its_deadline() {
    let mut fixture = RendezvousFixture::new(StateLimits::default());
    fixture.connect(1, "a");
    assert_eq!(fixture.call(1, "b"), []);
    assert_eq!(fixture.advance(Duration::from_millis(900)), []);
    let actions = fixture.connect(2, "b");
    assert_eq!(both_grants(&actions).0.call, Some(7));
    assert_eq!(fixture.call(1, "c"), []);
    assert_eq!(
        fixture.advance(Duration::from_millis(1000)),
        refusal(1, CallRefusal::Absent)
    );
    assert_eq!(
        fixture.connect(3, "c"),
        [],
        "who has given up does not wait"
    );
}

#[test]
fn the_same_name_in_another_job_is_another_worker() {
    let mut fixture = RendezvousFixture::new(StateLimits::default());
    fixture.connect(1, "a");
    fixture
        .state
        .connect(2, &worker_ticket("other", "b", 5000), fixture.now);
    assert_eq!(fixture.call(1, "b"), []);
    let report = WorkerMessage::Report {
        to: Some(worker_id("b")),
        report: JobReport::Ready,
    };
    let actions = fixture.state.handle_message(1, report, fixture.now);
    assert_eq!(
        actions,
        [RendezvousAction::Send(
            1,
            RendezvousMessage::Undelivered {
                to: Some(worker_id("b"))
            }
        )]
    );
    fixture
        .state
        .connect(3, &worker_ticket("other", "leader", 5000), fixture.now);
    let actions = fixture.state.handle_message(
        1,
        WorkerMessage::Report {
            to: None,
            report: JobReport::Ready,
        },
        fixture.now,
    );
    assert_eq!(
        actions,
        [RendezvousAction::Send(
            1,
            RendezvousMessage::Undelivered { to: None }
        )]
    );
}

#[test]
fn messages_in_sessions_of_others_are_refused() {
    let mut fixture = RendezvousFixture::new(StateLimits::default());
    let session = fixture.session();
    fixture.connect(3, "c");
    let no_such = vec![RendezvousAction::Send(
        3,
        RendezvousMessage::SessionClosed {
            session,
            reason: SessionCloseReason::NoSuch,
        },
    )];
    assert_eq!(fixture.send_message(3, session), no_such);
    assert_eq!(
        fixture
            .state
            .handle_message(3, WorkerMessage::CloseSession { session }, fixture.now),
        []
    );
    assert_eq!(
        fixture.send_message(1, session),
        [RendezvousAction::Send(
            2,
            RendezvousMessage::SessionMessage {
                session,
                message: SessionMessage::Relay
            }
        )]
    );
    assert_eq!(
        fixture.send_message(9, session),
        [],
        "a line that is not here says nothing"
    );
}

#[test]
fn a_newer_connection_displaces_the_older() {
    let mut fixture = RendezvousFixture::new(StateLimits::default());
    let session = fixture.session();
    assert_eq!(
        fixture.connect(3, "b"),
        [RendezvousAction::Close(2, CloseReason::Displaced)]
    );
    assert_eq!(
        fixture.send_message(1, session),
        [RendezvousAction::Send(
            3,
            RendezvousMessage::SessionMessage {
                session,
                message: SessionMessage::Relay
            }
        )]
    );
    assert_eq!(fixture.send_message(2, session), []);
    fixture.state.disconnect(2);
    assert_eq!(fixture.state.sizes(), (2, 1, 0));
}

#[test]
fn messages_for_an_absent_side_are_kept_up_to_a_limit() {
    let mut fixture = RendezvousFixture::new(StateLimits {
        max_kept_messages: 2,
        ..StateLimits::default()
    });
    let session = fixture.session();
    fixture.state.disconnect(2);
    assert_eq!(
        (
            fixture.send_message(1, session),
            fixture.send_message(1, session)
        ),
        (vec![], vec![])
    );
    assert_eq!(
        fixture.connect(3, "b"),
        vec![
            RendezvousAction::Send(
                3,
                RendezvousMessage::SessionMessage {
                    session,
                    message: SessionMessage::Relay
                }
            );
            2
        ]
    );
    fixture.state.disconnect(3);
    fixture.send_message(1, session);
    fixture.send_message(1, session);
    assert_eq!(
        fixture.send_message(1, session),
        [RendezvousAction::Send(
            1,
            RendezvousMessage::SessionClosed {
                session,
                reason: SessionCloseReason::Absent
            }
        )]
    );
    assert_eq!(fixture.state.sizes(), (1, 0, 0));
}

#[test]
fn limits_hold_and_capacity_is_released() {
    let limits = StateLimits {
        max_sessions: 1,
        max_waiting_calls: 1,
        max_calls_to_peer: 2,
        max_job_connections: 4,
        ..StateLimits::default()
    };
    let mut fixture = RendezvousFixture::new(limits);
    let session = fixture.session();
    assert_eq!(fixture.call(1, "b"), refusal(1, CallRefusal::TooMany));
    fixture.connect(3, "c");
    assert_eq!(
        fixture.call(3, "b"),
        refusal(3, CallRefusal::TooMany),
        "the peer has no room"
    );
    let actions =
        fixture
            .state
            .handle_message(1, WorkerMessage::CloseSession { session }, fixture.now);
    assert_eq!(
        actions,
        [RendezvousAction::Send(
            2,
            RendezvousMessage::SessionClosed {
                session,
                reason: SessionCloseReason::Peer
            }
        )]
    );
    assert_eq!(
        (fixture.call(1, "z"), fixture.call(3, "z")),
        (vec![], vec![])
    );
    assert_eq!(
        fixture.call(1, "y"),
        refusal(1, CallRefusal::TooMany),
        "one call waits"
    );
    assert_eq!(
        fixture.call(2, "z"),
        refusal(2, CallRefusal::TooMany),
        "two wait for z"
    );
    fixture.connect(4, "d");
    assert_eq!(
        fixture.connect(5, "e"),
        [RendezvousAction::Close(5, CloseReason::TooMany)]
    );
    assert_eq!(
        fixture.connect(6, "d"),
        [RendezvousAction::Close(4, CloseReason::Displaced)],
        "who comes again needs no room"
    );
}

#[test]
fn calls_to_oneself_and_calls_that_are_too_long_are_refused() {
    let mut fixture = RendezvousFixture::new(StateLimits::default());
    fixture.connect(1, "a");
    assert_eq!(fixture.call(1, "a"), refusal(1, CallRefusal::SelfCall));
    let message = WorkerMessage::Call {
        call: 7,
        peer: worker_id("b"),
        about: "x".repeat(129),
        within: 0,
        hello: None,
    };
    assert_eq!(
        fixture.state.handle_message(1, message, fixture.now),
        refusal(1, CallRefusal::TooLong)
    );
    let message = WorkerMessage::Call {
        call: 7,
        peer: worker_id("b"),
        about: String::new(),
        within: 0,
        hello: Some(hello_bytes(2049)),
    };
    assert_eq!(
        fixture.state.handle_message(1, message, fixture.now),
        refusal(1, CallRefusal::TooLong)
    );
}

#[test]
fn reports_reach_the_leader_or_the_named_worker() {
    let mut fixture = RendezvousFixture::new(StateLimits::default());
    fixture.connect(1, "a");
    fixture.connect(2, "leader");
    let actions = |connection| {
        vec![RendezvousAction::Send(
            connection,
            RendezvousMessage::Report {
                from: worker_id("a"),
                report: JobReport::Finished,
            },
        )]
    };
    let send_report = |fixture: &mut RendezvousFixture, to| {
        fixture.state.handle_message(
            1,
            WorkerMessage::Report {
                to,
                report: JobReport::Finished,
            },
            fixture.now,
        )
    };
    assert_eq!(send_report(&mut fixture, None), actions(2));
    assert_eq!(
        send_report(&mut fixture, Some(worker_id("leader"))),
        actions(2)
    );
    fixture.state.disconnect(2);
    assert_eq!(
        send_report(&mut fixture, None),
        [RendezvousAction::Send(
            1,
            RendezvousMessage::Undelivered { to: None }
        )]
    );
}
