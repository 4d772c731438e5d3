//! One promise at a time; [`super::simulation`] holds them against any order of events.

use std::time::Duration;

use super::*;

const PLACE: &str = "db:5432";
const IDLE: Duration = Duration::from_secs(60);
const AGE: Duration = Duration::from_secs(1_800);
const WAIT: Duration = Duration::from_secs(10);
const MS: Duration = Duration::from_millis(1);

/// A stock, a clock, and a server that does what it is told.
struct Desk {
    stock: Stock,
    now: Instant,
}

fn terms(max: u32, warm: u32) -> Terms {
    Terms { max, warm, idle: IDLE, age: AGE }
}

impl Desk {
    fn new() -> Self {
        Self { stock: Stock::new(), now: Instant::now() }
    }

    fn declare(&mut self, max: u32, warm: u32) -> KeyId {
        self.stock.declare(self.now, PLACE, terms(max, warm))
    }

    fn ask(&mut self, key: KeyId, asker: u32) -> Answer {
        self.stock.ask(self.now, key, Asker(asker), self.now + WAIT)
    }

    fn waits(&mut self, key: KeyId, asker: u32) -> Ticket {
        match self.ask(key, asker) {
            Answer::Wait(ticket) => ticket,
            other => panic!("{other:?}"),
        }
    }

    fn takes(&mut self, key: KeyId) -> SocketId {
        match self.ask(key, 0) {
            Answer::Take(socket) => socket,
            other => panic!("{other:?}"),
        }
    }

    fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.stock.poll()).collect()
    }

    /// Carries out what is asked for: every connection opens at once, every close is done. What clients were told.
    fn settle(&mut self) -> Vec<Action> {
        let mut told = Vec::new();
        while let Some(action) = self.stock.poll() {
            match action {
                Action::Connect(_, socket) => self.stock.connected(self.now, socket),
                Action::Close(socket) => self.stock.closed(self.now, socket),
                told_one => told.push(told_one),
            }
        }
        told
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.stock.tick(self.now);
    }

    fn warm(&self, key: KeyId) -> u32 {
        self.stock.figures(key).unwrap().warm
    }

    /// `n` connections handed out.
    fn out(&mut self, key: KeyId, asker: u32, n: u32) -> Vec<SocketId> {
        let mut out = Vec::new();
        for _ in 0..n {
            match self.ask(key, asker) {
                Answer::Take(socket) => out.push(socket),
                Answer::Wait(ticket) => out.extend(self.settle().into_iter().find_map(|action| match action {
                    Action::Give(other, socket) if other == ticket => Some(socket),
                    _ => None,
                })),
                Answer::Refused(why) => panic!("{why:?}"),
            }
            self.settle();
        }
        out
    }
}

#[test]
fn the_first_client_waits_for_its_connection_and_the_next_finds_one() {
    let mut desk = Desk::new();
    let key = desk.declare(20, 8);
    let ticket = desk.waits(key, 0);
    let told = desk.settle();
    assert!(matches!(told[..], [Action::Give(given, _)] if given == ticket), "{told:?}");
    desk.pass(20 * MS);
    let socket = desk.takes(key);
    let next = desk.actions();
    assert!(
        matches!(next[..], [Action::Connect(_, next)] if next != socket),
        "the next one is opened at once: {next:?}"
    );
    let figures = desk.stock.figures(key).unwrap();
    assert_eq!((figures.hits, figures.misses, figures.waits), (1, 1, 0));
}

#[test]
fn a_client_that_does_not_wait_finds_one_or_nothing() {
    let mut desk = Desk::new();
    let key = desk.declare(20, 8);
    assert_eq!((desk.stock.take(desk.now, key), desk.actions().len()), (None, 0));
    desk.stock.expects(desk.now, key, 1);
    desk.settle();
    assert!(desk.stock.take(desk.now, key).is_some());
}

#[test]
fn connections_are_warm_before_the_instances_that_are_expected() {
    let mut desk = Desk::new();
    let key = desk.declare(20, 8);
    desk.stock.expects(desk.now, key, 3);
    desk.settle();
    assert_eq!(desk.warm(key), 3);
    let before = desk.now;
    let taken: Vec<_> = (0..3).map(|_| desk.takes(key)).collect();
    assert_eq!((taken.len(), desk.now), (3, before), "all at once");
}

#[test]
fn without_use_nothing_is_kept_and_nothing_is_due() {
    let mut desk = Desk::new();
    let key = desk.declare(20, 8);
    desk.stock.expects(desk.now, key, 8);
    desk.out(key, 0, 5);
    for _ in 0..10 {
        let Some(at) = desk.stock.wake_at() else { break };
        desk.pass(at.duration_since(desk.now));
        desk.settle();
    }
    let figures = desk.stock.figures(key).unwrap();
    assert_eq!((figures.warm, figures.connecting, figures.open), (0, 0, 5));
    assert_eq!(desk.stock.wake_at(), None);
}

#[test]
fn the_newest_is_handed_out_and_the_old_ones_are_replaced() {
    let mut desk = Desk::new();
    let key = desk.declare(20, 8);
    desk.stock.expects(desk.now, key, 2);
    desk.settle();
    desk.pass(IDLE - MS);
    let figures = desk.stock.figures(key).unwrap();
    assert_eq!(figures.warm, 2);
    let kept = desk.takes(key);
    desk.settle();
    desk.pass(MS);
    let closed: Vec<_> = desk.actions().into_iter().filter(|action| matches!(action, Action::Close(_))).collect();
    assert_eq!(closed.len(), 1, "the other one of the old ones: {closed:?}");
    assert!(!closed.contains(&Action::Close(kept)));
}

#[test]
fn one_that_is_too_old_is_not_handed_out_even_if_nobody_looked() {
    let mut desk = Desk::new();
    let key = desk.declare(20, 8);
    desk.stock.expects(desk.now, key, 2);
    desk.settle();
    desk.now += IDLE;
    desk.waits(key, 0);
    assert_eq!(desk.actions().iter().filter(|action| matches!(action, Action::Close(_))).count(), 2);
}

#[test]
fn nothing_is_opened_above_the_ceiling_and_room_goes_to_who_waits() {
    let mut desk = Desk::new();
    let key = desk.declare(3, 0);
    let out = desk.out(key, 0, 3);
    let (first, second) = (desk.waits(key, 0), desk.waits(key, 0));
    assert_eq!(desk.settle(), [Action::Reclaim(key), Action::Reclaim(key)]);
    desk.stock.closed(desk.now, out[1]);
    assert!(matches!(desk.settle()[..], [Action::Reclaim(_), Action::Give(given, _)] if given == first));
    assert!(desk.stock.cancel(desk.now, second) && !desk.stock.cancel(desk.now, first));
    assert_eq!(desk.stock.need(key), Need::Nobody);
}

#[test]
fn functions_take_turns_and_a_flood_of_one_does_not_starve_another() {
    let mut desk = Desk::new();
    let (loud, quiet) = (desk.declare(2, 0), desk.declare(2, 0));
    let mut out = desk.out(loud, 0, 2);
    let flood: Vec<_> = (0..100).map(|_| desk.waits(loud, 0)).collect();
    let others: Vec<_> = (0..3).map(|_| desk.waits(quiet, 1)).collect();
    desk.settle();
    let mut order = Vec::new();
    for _ in 0..6 {
        desk.stock.closed(desk.now, out.remove(0));
        for action in desk.settle() {
            if let Action::Give(ticket, socket) = action {
                order.push(ticket);
                out.push(socket);
            }
        }
    }
    assert_eq!(order, [others[0], flood[0], others[1], flood[1], others[2], flood[2]]);
}

#[test]
fn one_function_fills_its_own_line_alone() {
    let mut desk = Desk::new();
    let key = desk.declare(1, 0);
    desk.out(key, 0, 1);
    let waits = |answer| matches!(answer, Answer::Wait(_));
    assert_eq!((0..2_000).filter(|_| waits(desk.ask(key, 0))).count(), 1_024);
    assert_eq!(desk.ask(key, 0), Answer::Refused(Why::Crowded));
    assert!(waits(desk.ask(key, 1)));
}

#[test]
fn nobody_waits_past_its_deadline() {
    let mut desk = Desk::new();
    let key = desk.declare(1, 0);
    desk.out(key, 0, 1);
    let ticket = desk.waits(key, 0);
    desk.actions();
    assert_eq!(desk.stock.wake_at(), Some(desk.now + WAIT));
    desk.pass(WAIT - MS);
    assert_eq!(desk.actions(), []);
    desk.pass(MS);
    let why = Why::Late { open: 1, failing: false };
    assert_eq!(desk.actions(), [Action::Refuse(ticket, why)]);
    assert_eq!(
        desk.stock.ask(desk.now, key, Asker(0), desk.now),
        Answer::Refused(why),
        "who does not wait is told at once"
    );
}

#[test]
fn what_is_warm_makes_room_for_another_key() {
    let mut desk = Desk::new();
    let (first, second) = (desk.declare(4, 4), desk.declare(4, 4));
    desk.stock.expects(desk.now, first, 4);
    desk.settle();
    assert_eq!(desk.warm(first), 4);
    let ticket = desk.waits(second, 1);
    let actions = desk.actions();
    assert!(matches!(actions[..], [Action::Close(_)]), "{actions:?}");
    assert_eq!(desk.stock.need(first), Need::Nobody, "what is being closed serves it");
    let Action::Close(socket) = actions[0] else { unreachable!() };
    desk.stock.closed(desk.now, socket);
    assert!(matches!(desk.settle()[..], [Action::Give(given, _)] if given == ticket));
}

#[test]
fn adapters_are_told_who_waits() {
    let mut desk = Desk::new();
    let (first, second) = (desk.declare(2, 0), desk.declare(2, 0));
    let out = desk.out(first, 0, 2);
    assert_eq!(desk.stock.need(first), Need::Nobody);
    let ticket = desk.waits(second, 1);
    assert_eq!((desk.stock.need(first), desk.stock.need(second)), (Need::Others, Need::Own));
    assert_eq!(desk.actions(), [Action::Reclaim(second)]);
    desk.stock.closed(desk.now, out[0]);
    assert!(matches!(desk.settle()[..], [Action::Give(given, _)] if given == ticket));
}

#[test]
fn a_lower_ceiling_of_one_function_stops_it_alone() {
    let mut desk = Desk::new();
    let (wide, narrow) = (desk.declare(4, 0), desk.declare(2, 0));
    let out = desk.out(wide, 0, 3);
    let low = desk.waits(narrow, 1);
    let high = desk.waits(wide, 0);
    assert!(desk.settle().iter().any(|action| matches!(action, Action::Give(given, _) if *given == high)));
    for (n, socket) in out.into_iter().enumerate() {
        desk.stock.closed(desk.now, socket);
        let given = desk.settle().iter().any(|action| matches!(action, Action::Give(given, _) if *given == low));
        assert_eq!(given, n == 2, "only when fewer than two are open");
    }
}

#[test]
fn a_failure_is_told_at_once_to_whose_it_is() {
    let mut desk = Desk::new();
    let key = desk.declare(20, 0);
    let tickets = [desk.waits(key, 0), desk.waits(key, 0)];
    let opened = |action| match action {
        Action::Connect(_, socket) => socket,
        other => panic!("{other:?}"),
    };
    let sockets: Vec<_> = desk.actions().into_iter().map(opened).collect();
    desk.stock.failed(desk.now, sockets[0]);
    assert_eq!(desk.actions(), [Action::Refuse(tickets[0], Why::Failed)]);
    desk.stock.connected(desk.now, sockets[1]);
    assert_eq!(desk.actions(), [Action::Give(tickets[1], sockets[1])]);
}

#[test]
fn a_failing_place_is_tried_for_nobody_after_pauses_and_for_clients_at_once() {
    let mut desk = Desk::new();
    let key = desk.declare(20, 8);
    desk.stock.expects(desk.now, key, 4);
    let mut tries = 0;
    let until = desk.now + IDLE / 2;
    while desk.now < until {
        for action in desk.actions() {
            let Action::Connect(_, socket) = action else { panic!("{action:?}") };
            desk.stock.failed(desk.now, socket);
            tries += 1;
        }
        let Some(at) = desk.stock.wake_at() else { break };
        desk.pass(at.duration_since(desk.now));
    }
    assert!((4..20).contains(&tries), "{tries}");
    desk.actions();
    desk.waits(key, 0);
    assert!(matches!(desk.actions()[..], [Action::Connect(..)]), "a client's own try");
}

#[test]
fn a_place_that_takes_connections_and_drops_them_is_not_hammered() {
    let mut desk = Desk::new();
    let key = desk.declare(20, 8);
    desk.stock.expects(desk.now, key, 4);
    let (mut opened, until) = (0, desk.now + IDLE / 2);
    while desk.now < until {
        while let Some(Action::Connect(_, socket)) = desk.stock.poll() {
            opened += 1;
            desk.stock.connected(desk.now, socket);
            desk.stock.closed(desk.now, socket);
        }
        let Some(at) = desk.stock.wake_at() else { break };
        desk.pass(at.duration_since(desk.now));
    }
    assert!((4..200).contains(&opened), "a few a second: {opened}");
}

#[test]
fn a_dead_one_is_no_hit() {
    let mut desk = Desk::new();
    let key = desk.declare(20, 8);
    desk.stock.expects(desk.now, key, 1);
    desk.settle();
    let socket = desk.takes(key);
    desk.stock.stale(desk.now, socket);
    let figures = desk.stock.figures(key).unwrap();
    assert_eq!((figures.hits, figures.stale), (0, 1));
}

#[test]
fn what_was_opened_before_a_change_is_not_handed_out_after_it() {
    let mut desk = Desk::new();
    let key = desk.declare(20, 8);
    desk.stock.expects(desk.now, key, 3);
    desk.settle();
    let out = desk.takes(key);
    desk.stock.retire(desk.now, key);
    desk.settle();
    let figures = desk.stock.figures(key).unwrap();
    assert_eq!((figures.open, figures.warm), (1, 0), "what is in use stays");
    desk.waits(key, 0);
    assert!(matches!(desk.settle()[..], [Action::Give(..)]), "instances that are being drained are served");
    assert_eq!(desk.warm(key), 0);
    desk.stock.closed(desk.now, out);
}

#[test]
fn a_forgotten_key_leaves_nothing_behind() {
    let mut desk = Desk::new();
    let key = desk.declare(1, 1);
    let out = desk.out(key, 0, 1);
    let ticket = desk.waits(key, 0);
    desk.settle();
    desk.stock.forget(desk.now, key);
    assert_eq!(desk.settle(), [Action::Refuse(ticket, Why::Gone)]);
    assert_eq!(desk.ask(key, 0), Answer::Refused(Why::Gone));
    desk.stock.closed(desk.now, out[0]);
    assert_eq!((desk.stock.figures(key), desk.stock.wake_at()), (None, None));
    assert!(desk.stock.names.is_empty());
}

#[test]
fn a_connection_that_was_given_to_nobody_serves_another() {
    let mut desk = Desk::new();
    let key = desk.declare(1, 1);
    let out = desk.out(key, 0, 1)[0];
    let ticket = desk.waits(key, 0);
    desk.settle();
    desk.stock.unused(desk.now, out);
    assert_eq!(desk.settle(), [Action::Give(ticket, out)]);
    desk.stock.unused(desk.now, out);
    assert_eq!((desk.settle(), desk.warm(key)), (vec![], 1));
}
