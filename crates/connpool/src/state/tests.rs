//! Tests of single promises; [`super::simulation`] checks them against any order of events.

use std::time::Duration;

use super::*;

const GROUP: &str = "db:5432";
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_AGE: Duration = Duration::from_secs(1_800);
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);

/// A state machine, a clock, and a server that accepts everything.
struct StateFixture {
    state: PoolState,
    now: Instant,
}

fn key_terms(max: u32, warm: u32) -> KeyTerms {
    KeyTerms {
        max,
        warm,
        idle: IDLE_TIMEOUT,
        age: MAX_AGE,
    }
}

impl StateFixture {
    fn new() -> Self {
        Self {
            state: PoolState::new(),
            now: Instant::now(),
        }
    }

    fn declare(&mut self, max: u32, warm: u32) -> KeyId {
        self.state
            .declare_key(self.now, GROUP, key_terms(max, warm))
    }

    fn request_socket(&mut self, key: KeyId, requester: u32) -> RequestOutcome {
        self.state.request_socket(
            self.now,
            key,
            RequesterId(requester),
            self.now + WAIT_TIMEOUT,
        )
    }

    fn expect_wait(&mut self, key: KeyId, requester: u32) -> WaitTicket {
        match self.request_socket(key, requester) {
            RequestOutcome::Wait(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn expect_warm(&mut self, key: KeyId) -> SocketId {
        match self.request_socket(key, 0) {
            RequestOutcome::Take(socket) => socket,
            other => panic!("{other:?}"),
        }
    }

    fn drain_actions(&mut self) -> Vec<StateAction> {
        std::iter::from_fn(|| self.state.poll()).collect()
    }

    /// Carries out all actions: every connect and every close succeeds at once. Returns the actions
    /// for clients.
    fn carry_out(&mut self) -> Vec<StateAction> {
        let mut for_clients = Vec::new();
        while let Some(action) = self.state.poll() {
            match action {
                StateAction::Connect(_, socket) => self.state.socket_connected(self.now, socket),
                StateAction::Close(socket) => self.state.socket_closed(self.now, socket),
                for_client => for_clients.push(for_client),
            }
        }
        for_clients
    }

    fn pass_time(&mut self, time: Duration) {
        self.now += time;
        self.state.tick(self.now);
    }

    fn warm_count(&self, key: KeyId) -> u32 {
        self.state.key_figures(key).unwrap().warm
    }

    /// Hands out `n` connections.
    fn hand_out(&mut self, key: KeyId, requester: u32, n: u32) -> Vec<SocketId> {
        let mut in_use = Vec::new();
        for _ in 0..n {
            match self.request_socket(key, requester) {
                RequestOutcome::Take(socket) => in_use.push(socket),
                RequestOutcome::Wait(ticket) => in_use.extend(
                    self.carry_out()
                        .into_iter()
                        .find_map(|action| match action {
                            StateAction::Give(other, socket) if other == ticket => Some(socket),
                            _ => None,
                        }),
                ),
                RequestOutcome::Refused(why) => panic!("{why:?}"),
            }
            self.carry_out();
        }
        in_use
    }
}

#[test]
fn the_first_client_waits_for_its_connection_and_the_next_finds_one() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(20, 8);
    let ticket = fixture.expect_wait(key, 0);
    let for_clients = fixture.carry_out();
    assert!(
        matches!(for_clients[..], [StateAction::Give(given, _)] if given == ticket),
        "{for_clients:?}"
    );
    fixture.pass_time(20 * MS);
    let socket = fixture.expect_warm(key);
    let next = fixture.drain_actions();
    assert!(
        matches!(next[..], [StateAction::Connect(_, next)] if next != socket),
        "the next one is opened at once: {next:?}"
    );
    let figures = fixture.state.key_figures(key).unwrap();
    assert_eq!((figures.hits, figures.misses, figures.waits), (1, 1, 0));
}

#[test]
fn a_client_that_does_not_wait_finds_one_or_nothing() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(20, 8);
    assert_eq!(
        (
            fixture.state.take_warm(fixture.now, key),
            fixture.drain_actions().len()
        ),
        (None, 0)
    );
    fixture.state.expect_clients(fixture.now, key, 1);
    fixture.carry_out();
    assert!(fixture.state.take_warm(fixture.now, key).is_some());
}

#[test]
fn connections_are_warm_before_the_instances_that_are_expected() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(20, 8);
    fixture.state.expect_clients(fixture.now, key, 3);
    fixture.carry_out();
    assert_eq!(fixture.warm_count(key), 3);
    let before = fixture.now;
    let taken: Vec<_> = (0..3).map(|_| fixture.expect_warm(key)).collect();
    assert_eq!((taken.len(), fixture.now), (3, before), "all at once");
}

#[test]
fn without_use_nothing_is_kept_and_nothing_is_due() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(20, 8);
    fixture.state.expect_clients(fixture.now, key, 8);
    fixture.hand_out(key, 0, 5);
    for _ in 0..10 {
        let Some(at) = fixture.state.wake_at() else {
            break;
        };
        fixture.pass_time(at.duration_since(fixture.now));
        fixture.carry_out();
    }
    let figures = fixture.state.key_figures(key).unwrap();
    assert_eq!((figures.warm, figures.connecting, figures.open), (0, 0, 5));
    assert_eq!(fixture.state.wake_at(), None);
}

#[test]
fn the_newest_is_handed_out_and_the_old_ones_are_replaced() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(20, 8);
    fixture.state.expect_clients(fixture.now, key, 2);
    fixture.carry_out();
    fixture.pass_time(IDLE_TIMEOUT - MS);
    let figures = fixture.state.key_figures(key).unwrap();
    assert_eq!(figures.warm, 2);
    let kept = fixture.expect_warm(key);
    fixture.carry_out();
    fixture.pass_time(MS);
    let closed: Vec<_> = fixture
        .drain_actions()
        .into_iter()
        .filter(|action| matches!(action, StateAction::Close(_)))
        .collect();
    assert_eq!(closed.len(), 1, "the other one of the old ones: {closed:?}");
    assert!(!closed.contains(&StateAction::Close(kept)));
}

#[test]
fn an_expired_connection_is_not_handed_out_even_before_a_tick() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(20, 8);
    fixture.state.expect_clients(fixture.now, key, 2);
    fixture.carry_out();
    fixture.now += IDLE_TIMEOUT;
    fixture.expect_wait(key, 0);
    assert_eq!(
        fixture
            .drain_actions()
            .iter()
            .filter(|action| matches!(action, StateAction::Close(_)))
            .count(),
        2
    );
}

#[test]
fn nothing_is_opened_above_the_limit_and_free_slots_go_to_waiters() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(3, 0);
    let in_use = fixture.hand_out(key, 0, 3);
    let (first, second) = (fixture.expect_wait(key, 0), fixture.expect_wait(key, 0));
    assert_eq!(
        fixture.carry_out(),
        [StateAction::Reclaim(key), StateAction::Reclaim(key)]
    );
    fixture.state.socket_closed(fixture.now, in_use[1]);
    assert!(
        matches!(fixture.carry_out()[..], [StateAction::Reclaim(_), StateAction::Give(given, _)] if given == first)
    );
    assert!(
        fixture.state.cancel_wait(fixture.now, second)
            && !fixture.state.cancel_wait(fixture.now, first)
    );
    assert_eq!(fixture.state.next_waiter(key), NextWaiter::None);
}

#[test]
fn functions_take_turns_and_a_flood_of_one_does_not_starve_another() {
    let mut fixture = StateFixture::new();
    let (loud, quiet) = (fixture.declare(2, 0), fixture.declare(2, 0));
    let mut in_use = fixture.hand_out(loud, 0, 2);
    let flood: Vec<_> = (0..100).map(|_| fixture.expect_wait(loud, 0)).collect();
    let others: Vec<_> = (0..3).map(|_| fixture.expect_wait(quiet, 1)).collect();
    fixture.carry_out();
    let mut order = Vec::new();
    for _ in 0..6 {
        fixture.state.socket_closed(fixture.now, in_use.remove(0));
        for action in fixture.carry_out() {
            if let StateAction::Give(ticket, socket) = action {
                order.push(ticket);
                in_use.push(socket);
            }
        }
    }
    assert_eq!(
        order,
        [
            others[0], flood[0], others[1], flood[1], others[2], flood[2]
        ]
    );
}

#[test]
fn a_function_fills_only_its_own_queue() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(1, 0);
    fixture.hand_out(key, 0, 1);
    let waits = |outcome| matches!(outcome, RequestOutcome::Wait(_));
    assert_eq!(
        (0..2_000)
            .filter(|_| waits(fixture.request_socket(key, 0)))
            .count(),
        1_024
    );
    assert_eq!(
        fixture.request_socket(key, 0),
        RequestOutcome::Refused(RefusalReason::QueueFull)
    );
    assert!(waits(fixture.request_socket(key, 1)));
}

#[test]
fn no_client_waits_past_its_deadline() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(1, 0);
    fixture.hand_out(key, 0, 1);
    let ticket = fixture.expect_wait(key, 0);
    fixture.drain_actions();
    assert_eq!(fixture.state.wake_at(), Some(fixture.now + WAIT_TIMEOUT));
    fixture.pass_time(WAIT_TIMEOUT - MS);
    assert_eq!(fixture.drain_actions(), []);
    fixture.pass_time(MS);
    let why = RefusalReason::TimedOut {
        open: 1,
        failing: false,
    };
    assert_eq!(fixture.drain_actions(), [StateAction::Refuse(ticket, why)]);
    assert_eq!(
        fixture
            .state
            .request_socket(fixture.now, key, RequesterId(0), fixture.now),
        RequestOutcome::Refused(why),
        "a client without time to wait is refused at once"
    );
}

#[test]
fn warm_connections_make_room_for_another_key() {
    let mut fixture = StateFixture::new();
    let (first, second) = (fixture.declare(4, 4), fixture.declare(4, 4));
    fixture.state.expect_clients(fixture.now, first, 4);
    fixture.carry_out();
    assert_eq!(fixture.warm_count(first), 4);
    let ticket = fixture.expect_wait(second, 1);
    let actions = fixture.drain_actions();
    assert!(
        matches!(actions[..], [StateAction::Close(_)]),
        "{actions:?}"
    );
    assert_eq!(
        fixture.state.next_waiter(first),
        NextWaiter::None,
        "the slot being freed serves it"
    );
    let StateAction::Close(socket) = actions[0] else {
        unreachable!()
    };
    fixture.state.socket_closed(fixture.now, socket);
    assert!(matches!(fixture.carry_out()[..], [StateAction::Give(given, _)] if given == ticket));
}

#[test]
fn adapters_learn_which_key_waits() {
    let mut fixture = StateFixture::new();
    let (first, second) = (fixture.declare(2, 0), fixture.declare(2, 0));
    let in_use = fixture.hand_out(first, 0, 2);
    assert_eq!(fixture.state.next_waiter(first), NextWaiter::None);
    let ticket = fixture.expect_wait(second, 1);
    assert_eq!(
        (
            fixture.state.next_waiter(first),
            fixture.state.next_waiter(second)
        ),
        (NextWaiter::OtherKey, NextWaiter::SameKey)
    );
    assert_eq!(fixture.drain_actions(), [StateAction::Reclaim(second)]);
    fixture.state.socket_closed(fixture.now, in_use[0]);
    assert!(matches!(fixture.carry_out()[..], [StateAction::Give(given, _)] if given == ticket));
}

#[test]
fn a_lower_limit_stops_only_its_own_function() {
    let mut fixture = StateFixture::new();
    let (wide, narrow) = (fixture.declare(4, 0), fixture.declare(2, 0));
    let in_use = fixture.hand_out(wide, 0, 3);
    let low = fixture.expect_wait(narrow, 1);
    let high = fixture.expect_wait(wide, 0);
    assert!(
        fixture
            .carry_out()
            .iter()
            .any(|action| matches!(action, StateAction::Give(given, _) if *given == high))
    );
    for (n, socket) in in_use.into_iter().enumerate() {
        fixture.state.socket_closed(fixture.now, socket);
        let given = fixture
            .carry_out()
            .iter()
            .any(|action| matches!(action, StateAction::Give(given, _) if *given == low));
        assert_eq!(given, n == 2, "only when fewer than two are open");
    }
}

#[test]
fn a_failure_is_reported_at_once_to_its_waiter() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(20, 0);
    let tickets = [fixture.expect_wait(key, 0), fixture.expect_wait(key, 0)];
    let opened = |action| match action {
        StateAction::Connect(_, socket) => socket,
        other => panic!("{other:?}"),
    };
    let sockets: Vec<_> = fixture.drain_actions().into_iter().map(opened).collect();
    fixture.state.socket_failed(fixture.now, sockets[0]);
    assert_eq!(
        fixture.drain_actions(),
        [StateAction::Refuse(tickets[0], RefusalReason::Failed)]
    );
    fixture.state.socket_connected(fixture.now, sockets[1]);
    assert_eq!(
        fixture.drain_actions(),
        [StateAction::Give(tickets[1], sockets[1])]
    );
}

#[test]
fn a_failing_group_is_retried_after_pauses_and_for_clients_at_once() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(20, 8);
    fixture.state.expect_clients(fixture.now, key, 4);
    let mut tries = 0;
    let until = fixture.now + IDLE_TIMEOUT / 2;
    while fixture.now < until {
        for action in fixture.drain_actions() {
            let StateAction::Connect(_, socket) = action else {
                panic!("{action:?}")
            };
            fixture.state.socket_failed(fixture.now, socket);
            tries += 1;
        }
        let Some(at) = fixture.state.wake_at() else {
            break;
        };
        fixture.pass_time(at.duration_since(fixture.now));
    }
    assert!((4..20).contains(&tries), "{tries}");
    fixture.drain_actions();
    fixture.expect_wait(key, 0);
    assert!(
        matches!(fixture.drain_actions()[..], [StateAction::Connect(..)]),
        "a client's own try"
    );
}

#[test]
fn a_server_that_accepts_and_drops_connections_is_not_hammered() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(20, 8);
    fixture.state.expect_clients(fixture.now, key, 4);
    let (mut opened, until) = (0, fixture.now + IDLE_TIMEOUT / 2);
    while fixture.now < until {
        while let Some(StateAction::Connect(_, socket)) = fixture.state.poll() {
            opened += 1;
            fixture.state.socket_connected(fixture.now, socket);
            fixture.state.socket_closed(fixture.now, socket);
        }
        let Some(at) = fixture.state.wake_at() else {
            break;
        };
        fixture.pass_time(at.duration_since(fixture.now));
    }
    assert!((4..200).contains(&opened), "a few a second: {opened}");
}

#[test]
fn a_stale_connection_is_no_hit() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(20, 8);
    fixture.state.expect_clients(fixture.now, key, 1);
    fixture.carry_out();
    let socket = fixture.expect_warm(key);
    fixture.state.socket_stale(fixture.now, socket);
    let figures = fixture.state.key_figures(key).unwrap();
    assert_eq!((figures.hits, figures.stale), (0, 1));
}

#[test]
fn connections_from_before_a_change_are_not_handed_out_after_it() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(20, 8);
    fixture.state.expect_clients(fixture.now, key, 3);
    fixture.carry_out();
    let in_use = fixture.expect_warm(key);
    fixture.state.retire_key(fixture.now, key);
    fixture.carry_out();
    let figures = fixture.state.key_figures(key).unwrap();
    assert_eq!(
        (figures.open, figures.warm),
        (1, 0),
        "a connection in use stays"
    );
    fixture.expect_wait(key, 0);
    assert!(
        matches!(fixture.carry_out()[..], [StateAction::Give(..)]),
        "draining instances are served"
    );
    assert_eq!(fixture.warm_count(key), 0);
    fixture.state.socket_closed(fixture.now, in_use);
}

#[test]
fn a_forgotten_key_leaves_nothing_behind() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(1, 1);
    let in_use = fixture.hand_out(key, 0, 1);
    let ticket = fixture.expect_wait(key, 0);
    fixture.carry_out();
    fixture.state.forget_key(fixture.now, key);
    assert_eq!(
        fixture.carry_out(),
        [StateAction::Refuse(ticket, RefusalReason::KeyForgotten)]
    );
    assert_eq!(
        fixture.request_socket(key, 0),
        RequestOutcome::Refused(RefusalReason::KeyForgotten)
    );
    fixture.state.socket_closed(fixture.now, in_use[0]);
    assert_eq!(
        (fixture.state.key_figures(key), fixture.state.wake_at()),
        (None, None)
    );
    assert!(fixture.state.group_ids.is_empty());
}

#[test]
fn an_unused_connection_serves_another_client() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(1, 1);
    let in_use = fixture.hand_out(key, 0, 1)[0];
    let ticket = fixture.expect_wait(key, 0);
    fixture.carry_out();
    fixture.state.socket_unused(fixture.now, in_use);
    assert_eq!(fixture.carry_out(), [StateAction::Give(ticket, in_use)]);
    fixture.state.socket_unused(fixture.now, in_use);
    assert_eq!((fixture.carry_out(), fixture.warm_count(key)), (vec![], 1));
}

#[test]
fn a_lower_limit_closes_unused_connections_and_none_in_use() {
    let mut fixture = StateFixture::new();
    let key = fixture.declare(10, 4);
    let in_use = fixture.hand_out(key, 0, 4);
    assert_eq!((in_use.len(), fixture.warm_count(key)), (4, 4));
    fixture.state.set_limits(fixture.now, key, 5, 4);
    let closed = fixture.drain_actions();
    let is_unused = |action: &StateAction| match action {
        StateAction::Close(socket) => !in_use.contains(socket),
        _ => false,
    };
    assert!(
        closed.len() == 3 && closed.iter().all(is_unused),
        "{closed:?}"
    );
    let close = |fixture: &mut StateFixture, action: StateAction| match action {
        StateAction::Close(socket) => fixture.state.socket_closed(fixture.now, socket),
        other => panic!("{other:?}"),
    };
    closed
        .into_iter()
        .for_each(|action| close(&mut fixture, action));
    assert_eq!(fixture.state.key_figures(key).unwrap().open, 5);
    // Below those in use: a client waits until enough of them have ended.
    fixture.state.set_limits(fixture.now, key, 2, 2);
    let actions = fixture.drain_actions();
    let (closes, reclaims): (Vec<_>, Vec<_>) = actions
        .into_iter()
        .partition(|action| matches!(action, StateAction::Close(_)));
    assert_eq!(reclaims, [StateAction::Reclaim(key); 2], "of adapters");
    closes
        .into_iter()
        .for_each(|action| close(&mut fixture, action));
    let waiting = fixture.expect_wait(key, 0);
    for socket in &in_use[..2] {
        fixture.state.socket_closed(fixture.now, *socket);
        let given = fixture.carry_out();
        assert!(
            !given
                .iter()
                .any(|action| matches!(action, StateAction::Give(..))),
            "{given:?}"
        );
    }
    fixture.state.socket_closed(fixture.now, in_use[2]);
    let given = fixture.carry_out();
    assert!(
        matches!(given[..], [StateAction::Give(ticket, _)] if ticket == waiting),
        "{given:?}"
    );
    // A higher limit serves waiting clients at once.
    let waiting = fixture.expect_wait(key, 0);
    fixture.drain_actions();
    fixture.state.set_limits(fixture.now, key, 5, 2);
    let given = fixture.carry_out();
    assert!(
        matches!(given[..], [StateAction::Give(ticket, _)] if ticket == waiting),
        "{given:?}"
    );
}
