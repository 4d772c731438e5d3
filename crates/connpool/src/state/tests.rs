//! One promise at a time; [`super::simulation`] holds them against any order of events.

use std::time::Duration;

use super::*;

const GROUP: &str = "db:5432";
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_AGE: Duration = Duration::from_secs(1_800);
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);

/// A stock, a clock, and a server that does what it is told.
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

    fn request_socket(&mut self, key: KeyId, asker: u32) -> RequestOutcome {
        self.state
            .request_socket(self.now, key, RequesterId(asker), self.now + WAIT_TIMEOUT)
    }

    fn expect_wait(&mut self, key: KeyId, asker: u32) -> WaitTicket {
        match self.request_socket(key, asker) {
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

    /// Carries out what is asked for: every connection opens at once, every close is done. What clients were told.
    fn carry_out(&mut self) -> Vec<StateAction> {
        let mut told = Vec::new();
        while let Some(action) = self.state.poll() {
            match action {
                StateAction::Connect(_, socket) => self.state.socket_connected(self.now, socket),
                StateAction::Close(socket) => self.state.socket_closed(self.now, socket),
                told_one => told.push(told_one),
            }
        }
        told
    }

    fn pass_time(&mut self, time: Duration) {
        self.now += time;
        self.state.tick(self.now);
    }

    fn warm_count(&self, key: KeyId) -> u32 {
        self.state.key_figures(key).unwrap().warm
    }

    /// `n` connections handed out.
    fn hand_out(&mut self, key: KeyId, asker: u32, n: u32) -> Vec<SocketId> {
        let mut out = Vec::new();
        for _ in 0..n {
            match self.request_socket(key, asker) {
                RequestOutcome::Take(socket) => out.push(socket),
                RequestOutcome::Wait(ticket) => out.extend(self.carry_out().into_iter().find_map(
                    |action| match action {
                        StateAction::Give(other, socket) if other == ticket => Some(socket),
                        _ => None,
                    },
                )),
                RequestOutcome::Refused(why) => panic!("{why:?}"),
            }
            self.carry_out();
        }
        out
    }
}

#[test]
fn the_first_client_waits_for_its_connection_and_the_next_finds_one() {
    let mut desk = StateFixture::new();
    let key = desk.declare(20, 8);
    let ticket = desk.expect_wait(key, 0);
    let told = desk.carry_out();
    assert!(
        matches!(told[..], [StateAction::Give(given, _)] if given == ticket),
        "{told:?}"
    );
    desk.pass_time(20 * MS);
    let socket = desk.expect_warm(key);
    let next = desk.drain_actions();
    assert!(
        matches!(next[..], [StateAction::Connect(_, next)] if next != socket),
        "the next one is opened at once: {next:?}"
    );
    let figures = desk.state.key_figures(key).unwrap();
    assert_eq!((figures.hits, figures.misses, figures.waits), (1, 1, 0));
}

#[test]
fn a_client_that_does_not_wait_finds_one_or_nothing() {
    let mut desk = StateFixture::new();
    let key = desk.declare(20, 8);
    assert_eq!(
        (
            desk.state.take_warm(desk.now, key),
            desk.drain_actions().len()
        ),
        (None, 0)
    );
    desk.state.expect_clients(desk.now, key, 1);
    desk.carry_out();
    assert!(desk.state.take_warm(desk.now, key).is_some());
}

#[test]
fn connections_are_warm_before_the_instances_that_are_expected() {
    let mut desk = StateFixture::new();
    let key = desk.declare(20, 8);
    desk.state.expect_clients(desk.now, key, 3);
    desk.carry_out();
    assert_eq!(desk.warm_count(key), 3);
    let before = desk.now;
    let taken: Vec<_> = (0..3).map(|_| desk.expect_warm(key)).collect();
    assert_eq!((taken.len(), desk.now), (3, before), "all at once");
}

#[test]
fn without_use_nothing_is_kept_and_nothing_is_due() {
    let mut desk = StateFixture::new();
    let key = desk.declare(20, 8);
    desk.state.expect_clients(desk.now, key, 8);
    desk.hand_out(key, 0, 5);
    for _ in 0..10 {
        let Some(at) = desk.state.wake_at() else {
            break;
        };
        desk.pass_time(at.duration_since(desk.now));
        desk.carry_out();
    }
    let figures = desk.state.key_figures(key).unwrap();
    assert_eq!((figures.warm, figures.connecting, figures.open), (0, 0, 5));
    assert_eq!(desk.state.wake_at(), None);
}

#[test]
fn the_newest_is_handed_out_and_the_old_ones_are_replaced() {
    let mut desk = StateFixture::new();
    let key = desk.declare(20, 8);
    desk.state.expect_clients(desk.now, key, 2);
    desk.carry_out();
    desk.pass_time(IDLE_TIMEOUT - MS);
    let figures = desk.state.key_figures(key).unwrap();
    assert_eq!(figures.warm, 2);
    let kept = desk.expect_warm(key);
    desk.carry_out();
    desk.pass_time(MS);
    let closed: Vec<_> = desk
        .drain_actions()
        .into_iter()
        .filter(|action| matches!(action, StateAction::Close(_)))
        .collect();
    assert_eq!(closed.len(), 1, "the other one of the old ones: {closed:?}");
    assert!(!closed.contains(&StateAction::Close(kept)));
}

#[test]
fn an_expired_connection_is_not_handed_out_even_before_a_tick() {
    let mut desk = StateFixture::new();
    let key = desk.declare(20, 8);
    desk.state.expect_clients(desk.now, key, 2);
    desk.carry_out();
    desk.now += IDLE_TIMEOUT;
    desk.expect_wait(key, 0);
    assert_eq!(
        desk.drain_actions()
            .iter()
            .filter(|action| matches!(action, StateAction::Close(_)))
            .count(),
        2
    );
}

#[test]
fn nothing_is_opened_above_the_limit_and_room_goes_to_waiters() {
    let mut desk = StateFixture::new();
    let key = desk.declare(3, 0);
    let out = desk.hand_out(key, 0, 3);
    let (first, second) = (desk.expect_wait(key, 0), desk.expect_wait(key, 0));
    assert_eq!(
        desk.carry_out(),
        [StateAction::Reclaim(key), StateAction::Reclaim(key)]
    );
    desk.state.socket_closed(desk.now, out[1]);
    assert!(
        matches!(desk.carry_out()[..], [StateAction::Reclaim(_), StateAction::Give(given, _)] if given == first)
    );
    assert!(desk.state.cancel_wait(desk.now, second) && !desk.state.cancel_wait(desk.now, first));
    assert_eq!(desk.state.next_waiter(key), NextWaiter::None);
}

#[test]
fn functions_take_turns_and_a_flood_of_one_does_not_starve_another() {
    let mut desk = StateFixture::new();
    let (loud, quiet) = (desk.declare(2, 0), desk.declare(2, 0));
    let mut out = desk.hand_out(loud, 0, 2);
    let flood: Vec<_> = (0..100).map(|_| desk.expect_wait(loud, 0)).collect();
    let others: Vec<_> = (0..3).map(|_| desk.expect_wait(quiet, 1)).collect();
    desk.carry_out();
    let mut order = Vec::new();
    for _ in 0..6 {
        desk.state.socket_closed(desk.now, out.remove(0));
        for action in desk.carry_out() {
            if let StateAction::Give(ticket, socket) = action {
                order.push(ticket);
                out.push(socket);
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
    let mut desk = StateFixture::new();
    let key = desk.declare(1, 0);
    desk.hand_out(key, 0, 1);
    let waits = |answer| matches!(answer, RequestOutcome::Wait(_));
    assert_eq!(
        (0..2_000)
            .filter(|_| waits(desk.request_socket(key, 0)))
            .count(),
        1_024
    );
    assert_eq!(
        desk.request_socket(key, 0),
        RequestOutcome::Refused(RefusalReason::QueueFull)
    );
    assert!(waits(desk.request_socket(key, 1)));
}

#[test]
fn no_client_waits_past_its_deadline() {
    let mut desk = StateFixture::new();
    let key = desk.declare(1, 0);
    desk.hand_out(key, 0, 1);
    let ticket = desk.expect_wait(key, 0);
    desk.drain_actions();
    assert_eq!(desk.state.wake_at(), Some(desk.now + WAIT_TIMEOUT));
    desk.pass_time(WAIT_TIMEOUT - MS);
    assert_eq!(desk.drain_actions(), []);
    desk.pass_time(MS);
    let why = RefusalReason::TimedOut {
        open: 1,
        failing: false,
    };
    assert_eq!(desk.drain_actions(), [StateAction::Refuse(ticket, why)]);
    assert_eq!(
        desk.state
            .request_socket(desk.now, key, RequesterId(0), desk.now),
        RequestOutcome::Refused(why),
        "who does not wait is told at once"
    );
}

#[test]
fn warm_connections_make_room_for_another_key() {
    let mut desk = StateFixture::new();
    let (first, second) = (desk.declare(4, 4), desk.declare(4, 4));
    desk.state.expect_clients(desk.now, first, 4);
    desk.carry_out();
    assert_eq!(desk.warm_count(first), 4);
    let ticket = desk.expect_wait(second, 1);
    let actions = desk.drain_actions();
    assert!(
        matches!(actions[..], [StateAction::Close(_)]),
        "{actions:?}"
    );
    assert_eq!(
        desk.state.next_waiter(first),
        NextWaiter::None,
        "what is being closed serves it"
    );
    let StateAction::Close(socket) = actions[0] else {
        unreachable!()
    };
    desk.state.socket_closed(desk.now, socket);
    assert!(matches!(desk.carry_out()[..], [StateAction::Give(given, _)] if given == ticket));
}

#[test]
fn adapters_learn_which_key_waits() {
    let mut desk = StateFixture::new();
    let (first, second) = (desk.declare(2, 0), desk.declare(2, 0));
    let out = desk.hand_out(first, 0, 2);
    assert_eq!(desk.state.next_waiter(first), NextWaiter::None);
    let ticket = desk.expect_wait(second, 1);
    assert_eq!(
        (
            desk.state.next_waiter(first),
            desk.state.next_waiter(second)
        ),
        (NextWaiter::OtherKey, NextWaiter::SameKey)
    );
    assert_eq!(desk.drain_actions(), [StateAction::Reclaim(second)]);
    desk.state.socket_closed(desk.now, out[0]);
    assert!(matches!(desk.carry_out()[..], [StateAction::Give(given, _)] if given == ticket));
}

#[test]
fn a_lower_limit_stops_only_its_own_function() {
    let mut desk = StateFixture::new();
    let (wide, narrow) = (desk.declare(4, 0), desk.declare(2, 0));
    let out = desk.hand_out(wide, 0, 3);
    let low = desk.expect_wait(narrow, 1);
    let high = desk.expect_wait(wide, 0);
    assert!(
        desk.carry_out()
            .iter()
            .any(|action| matches!(action, StateAction::Give(given, _) if *given == high))
    );
    for (n, socket) in out.into_iter().enumerate() {
        desk.state.socket_closed(desk.now, socket);
        let given = desk
            .carry_out()
            .iter()
            .any(|action| matches!(action, StateAction::Give(given, _) if *given == low));
        assert_eq!(given, n == 2, "only when fewer than two are open");
    }
}

#[test]
fn a_failure_is_reported_at_once_to_its_waiter() {
    let mut desk = StateFixture::new();
    let key = desk.declare(20, 0);
    let tickets = [desk.expect_wait(key, 0), desk.expect_wait(key, 0)];
    let opened = |action| match action {
        StateAction::Connect(_, socket) => socket,
        other => panic!("{other:?}"),
    };
    let sockets: Vec<_> = desk.drain_actions().into_iter().map(opened).collect();
    desk.state.socket_failed(desk.now, sockets[0]);
    assert_eq!(
        desk.drain_actions(),
        [StateAction::Refuse(tickets[0], RefusalReason::Failed)]
    );
    desk.state.socket_connected(desk.now, sockets[1]);
    assert_eq!(
        desk.drain_actions(),
        [StateAction::Give(tickets[1], sockets[1])]
    );
}

#[test]
fn a_failing_group_is_retried_after_pauses_and_for_clients_at_once() {
    let mut desk = StateFixture::new();
    let key = desk.declare(20, 8);
    desk.state.expect_clients(desk.now, key, 4);
    let mut tries = 0;
    let until = desk.now + IDLE_TIMEOUT / 2;
    while desk.now < until {
        for action in desk.drain_actions() {
            let StateAction::Connect(_, socket) = action else {
                panic!("{action:?}")
            };
            desk.state.socket_failed(desk.now, socket);
            tries += 1;
        }
        let Some(at) = desk.state.wake_at() else {
            break;
        };
        desk.pass_time(at.duration_since(desk.now));
    }
    assert!((4..20).contains(&tries), "{tries}");
    desk.drain_actions();
    desk.expect_wait(key, 0);
    assert!(
        matches!(desk.drain_actions()[..], [StateAction::Connect(..)]),
        "a client's own try"
    );
}

#[test]
fn a_server_that_accepts_and_drops_connections_is_not_hammered() {
    let mut desk = StateFixture::new();
    let key = desk.declare(20, 8);
    desk.state.expect_clients(desk.now, key, 4);
    let (mut opened, until) = (0, desk.now + IDLE_TIMEOUT / 2);
    while desk.now < until {
        while let Some(StateAction::Connect(_, socket)) = desk.state.poll() {
            opened += 1;
            desk.state.socket_connected(desk.now, socket);
            desk.state.socket_closed(desk.now, socket);
        }
        let Some(at) = desk.state.wake_at() else {
            break;
        };
        desk.pass_time(at.duration_since(desk.now));
    }
    assert!((4..200).contains(&opened), "a few a second: {opened}");
}

#[test]
fn a_stale_connection_is_no_hit() {
    let mut desk = StateFixture::new();
    let key = desk.declare(20, 8);
    desk.state.expect_clients(desk.now, key, 1);
    desk.carry_out();
    let socket = desk.expect_warm(key);
    desk.state.socket_stale(desk.now, socket);
    let figures = desk.state.key_figures(key).unwrap();
    assert_eq!((figures.hits, figures.stale), (0, 1));
}

#[test]
fn connections_from_before_a_change_are_not_handed_out_after_it() {
    let mut desk = StateFixture::new();
    let key = desk.declare(20, 8);
    desk.state.expect_clients(desk.now, key, 3);
    desk.carry_out();
    let out = desk.expect_warm(key);
    desk.state.retire_key(desk.now, key);
    desk.carry_out();
    let figures = desk.state.key_figures(key).unwrap();
    assert_eq!((figures.open, figures.warm), (1, 0), "what is in use stays");
    desk.expect_wait(key, 0);
    assert!(
        matches!(desk.carry_out()[..], [StateAction::Give(..)]),
        "instances that are being drained are served"
    );
    assert_eq!(desk.warm_count(key), 0);
    desk.state.socket_closed(desk.now, out);
}

#[test]
fn a_forgotten_key_leaves_nothing_behind() {
    let mut desk = StateFixture::new();
    let key = desk.declare(1, 1);
    let out = desk.hand_out(key, 0, 1);
    let ticket = desk.expect_wait(key, 0);
    desk.carry_out();
    desk.state.forget_key(desk.now, key);
    assert_eq!(
        desk.carry_out(),
        [StateAction::Refuse(ticket, RefusalReason::KeyForgotten)]
    );
    assert_eq!(
        desk.request_socket(key, 0),
        RequestOutcome::Refused(RefusalReason::KeyForgotten)
    );
    desk.state.socket_closed(desk.now, out[0]);
    assert_eq!(
        (desk.state.key_figures(key), desk.state.wake_at()),
        (None, None)
    );
    assert!(desk.state.group_ids.is_empty());
}

#[test]
fn an_unused_connection_serves_another_client() {
    let mut desk = StateFixture::new();
    let key = desk.declare(1, 1);
    let out = desk.hand_out(key, 0, 1)[0];
    let ticket = desk.expect_wait(key, 0);
    desk.carry_out();
    desk.state.socket_unused(desk.now, out);
    assert_eq!(desk.carry_out(), [StateAction::Give(ticket, out)]);
    desk.state.socket_unused(desk.now, out);
    assert_eq!((desk.carry_out(), desk.warm_count(key)), (vec![], 1));
}
