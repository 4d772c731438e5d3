//! What the desk does, case by case.

use super::*;
use nearpath_p2p::message::{Base64, Granted, HungUp, Refusal, SessionText, Word};
use nearpath_p2p::ticket::{Crossing, Ticket};

/// Numbers that differ: what is drawn is looked at nowhere.
#[derive(Debug, Default)]
pub(super) struct Counting(u64);

impl Chance for Counting {
    fn fill(&mut self, bytes: &mut [u8]) {
        self.0 += 1;
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
    }
}

pub(super) fn key() -> Key {
    Key::new([1; 32])
}

pub(super) fn id(name: &str) -> SpiffeId {
    SpiffeId::gateway("job", name)
}

pub(super) fn ticket(job: &str, name: &str, until: u64) -> Ticket {
    Ticket { you: id(name), job: job.parse().unwrap(), leader: name == "leader", until }
}

struct Room {
    desk: Desk<Counting>,
    now: Moment,
}

impl Room {
    fn new(limits: Limits) -> Self {
        Self { desk: Desk::new(key(), limits, Counting::default()), now: Moment { at: Instant::now(), unix: 1000 } }
    }

    fn after(&mut self, span: Duration) -> Vec<Action> {
        self.now = Moment { at: self.now.at + span, unix: self.now.unix + span.as_secs() };
        self.desk.tick(self.now)
    }

    fn arrive(&mut self, line: LineNo, name: &str) -> Vec<Action> {
        self.desk.arrive(line, &ticket("sort", name, 5000), self.now)
    }

    fn call(&mut self, line: LineNo, peer: &str) -> Vec<Action> {
        let said = Said::Call { call: 7, peer: id(peer), about: "edge".into(), within: 1000, hello: Some(hello(200)) };
        self.desk.say(line, said, self.now)
    }

    /// A session of line 1, `a`, with line 2, `b`.
    fn session(&mut self) -> SessionText {
        self.arrive(1, "a");
        self.arrive(2, "b");
        granted(&self.call(1, "b")).1.session
    }

    fn tell(&mut self, line: LineNo, session: SessionText) -> Vec<Action> {
        self.desk.say(line, Said::Tell { session, word: Word::Relay }, self.now)
    }
}

/// What the caller and the called were told, in this order.
fn granted(actions: &[Action]) -> (Granted, Granted) {
    match actions {
        [Action::Tell(_, Told::Granted(own)), Action::Tell(_, Told::Granted(others))] => (own.clone(), others.clone()),
        other => panic!("no grant: {other:?}"),
    }
}

fn hello(length: usize) -> Base64 {
    Base64(vec![7; length].into())
}

fn refused(line: LineNo, why: Refusal) -> Vec<Action> {
    vec![Action::Tell(line, Told::Refused { call: 7, why })]
}

#[test]
fn both_get_the_same_grant_and_a_pass_of_their_own() {
    let mut room = Room::new(Limits::default());
    room.arrive(1, "a");
    room.arrive(2, "b");
    let (own, others) = granted(&room.call(1, "b"));
    assert_eq!((own.session, own.secret, own.expires), (others.session, others.secret, others.expires));
    assert_eq!((own.call, others.call, own.peer, others.peer), (Some(7), None, id("b"), id("a")));
    assert_eq!((own.expires, own.life, &*others.about), (1600, 600_000, "edge"));
    assert_eq!((own.hello, others.hello), (None, Some(hello(200))), "it is for the called side");
    let pass = Crossing::open(&own.pass.0, &key(), 1000).unwrap();
    assert_eq!((pass.you, pass.peer, pass.session, pass.until), (id("a"), id("b"), own.session, 5000));
    assert_eq!(Crossing::open(&others.pass.0, &key(), 1000).unwrap().you, id("b"));
}

#[test]
fn a_session_ends_with_the_first_ticket() {
    let mut room = Room::new(Limits::default());
    room.arrive(1, "a");
    room.desk.arrive(2, &ticket("sort", "b", 1100), room.now);
    assert_eq!(granted(&room.call(1, "b")).0.expires, 1100);
    let told = room.after(Duration::from_secs(100));
    assert!(told.contains(&Action::Close(2, Bye::Expired)), "{told:?}");
    assert!(told.iter().any(|one| matches!(one, Action::Tell(1, Told::HungUp { why: HungUp::Expired, .. }))));
}

#[test]
fn a_ticket_without_an_end_is_no_harm() {
    let mut room = Room::new(Limits { life: Duration::MAX, ..Limits::default() });
    for (line, name) in [(1, "a"), (2, "b")] {
        room.desk.arrive(line, &ticket("sort", name, u64::MAX), room.now);
    }
    assert_eq!(granted(&room.call(1, "b")).0.expires, u64::MAX);
    assert!(room.desk.next().is_some());
}

#[test]
fn a_call_waits_for_its_peer_up_to_its_deadline() {
    let mut room = Room::new(Limits::default());
    room.arrive(1, "a");
    assert_eq!(room.call(1, "b"), []);
    assert_eq!(room.after(Duration::from_millis(900)), []);
    let told = room.arrive(2, "b");
    assert_eq!(granted(&told).0.call, Some(7));
    assert_eq!(room.call(1, "c"), []);
    assert_eq!(room.after(Duration::from_millis(1000)), refused(1, Refusal::Absent));
    assert_eq!(room.arrive(3, "c"), [], "who has given up does not wait");
}

#[test]
fn the_same_name_in_another_job_is_another_worker() {
    let mut room = Room::new(Limits::default());
    room.arrive(1, "a");
    room.desk.arrive(2, &ticket("other", "b", 5000), room.now);
    assert_eq!(room.call(1, "b"), []);
    let report = Said::Report { to: Some(id("b")), report: Report::Ready };
    let told = room.desk.say(1, report, room.now);
    assert_eq!(told, [Action::Tell(1, Told::Undelivered { to: Some(id("b")) })]);
    room.desk.arrive(3, &ticket("other", "leader", 5000), room.now);
    let told = room.desk.say(1, Said::Report { to: None, report: Report::Ready }, room.now);
    assert_eq!(told, [Action::Tell(1, Told::Undelivered { to: None })]);
}

#[test]
fn nobody_speaks_in_a_session_of_others() {
    let mut room = Room::new(Limits::default());
    let session = room.session();
    room.arrive(3, "c");
    let no_such = vec![Action::Tell(3, Told::HungUp { session, why: HungUp::NoSuch })];
    assert_eq!(room.tell(3, session), no_such);
    assert_eq!(room.desk.say(3, Said::HangUp { session }, room.now), []);
    assert_eq!(room.tell(1, session), [Action::Tell(2, Told::Tell { session, word: Word::Relay })]);
    assert_eq!(room.tell(9, session), [], "a line that is not here says nothing");
}

#[test]
fn a_newer_line_takes_the_place_of_the_older() {
    let mut room = Room::new(Limits::default());
    let session = room.session();
    assert_eq!(room.arrive(3, "b"), [Action::Close(2, Bye::Displaced)]);
    assert_eq!(room.tell(1, session), [Action::Tell(3, Told::Tell { session, word: Word::Relay })]);
    assert_eq!(room.tell(2, session), []);
    room.desk.leave(2);
    assert_eq!(room.desk.size(), (2, 1, 0));
}

#[test]
fn what_is_told_to_an_absent_side_is_kept_up_to_a_bound() {
    let mut room = Room::new(Limits { kept: 2, ..Limits::default() });
    let session = room.session();
    room.desk.leave(2);
    assert_eq!((room.tell(1, session), room.tell(1, session)), (vec![], vec![]));
    assert_eq!(room.arrive(3, "b"), vec![Action::Tell(3, Told::Tell { session, word: Word::Relay }); 2]);
    room.desk.leave(3);
    room.tell(1, session);
    room.tell(1, session);
    assert_eq!(room.tell(1, session), [Action::Tell(1, Told::HungUp { session, why: HungUp::Absent })]);
    assert_eq!(room.desk.size(), (1, 0, 0));
}

#[test]
fn limits_hold_and_are_given_back() {
    let limits = Limits { sessions: 1, waiting: 1, awaiting: 2, lines_of_a_job: 4, ..Limits::default() };
    let mut room = Room::new(limits);
    let session = room.session();
    assert_eq!(room.call(1, "b"), refused(1, Refusal::TooMany));
    room.arrive(3, "c");
    assert_eq!(room.call(3, "b"), refused(3, Refusal::TooMany), "the peer has no room");
    let told = room.desk.say(1, Said::HangUp { session }, room.now);
    assert_eq!(told, [Action::Tell(2, Told::HungUp { session, why: HungUp::Peer })]);
    assert_eq!((room.call(1, "z"), room.call(3, "z")), (vec![], vec![]));
    assert_eq!(room.call(1, "y"), refused(1, Refusal::TooMany), "one call waits");
    assert_eq!(room.call(2, "z"), refused(2, Refusal::TooMany), "two wait for z");
    room.arrive(4, "d");
    assert_eq!(room.arrive(5, "e"), [Action::Close(5, Bye::TooMany)]);
    assert_eq!(room.arrive(6, "d"), [Action::Close(4, Bye::Displaced)], "who comes again needs no room");
}

#[test]
fn a_call_to_oneself_or_about_a_novel_is_refused() {
    let mut room = Room::new(Limits::default());
    room.arrive(1, "a");
    assert_eq!(room.call(1, "a"), refused(1, Refusal::Oneself));
    let said = Said::Call { call: 7, peer: id("b"), about: "x".repeat(129), within: 0, hello: None };
    assert_eq!(room.desk.say(1, said, room.now), refused(1, Refusal::TooLong));
    let said = Said::Call { call: 7, peer: id("b"), about: String::new(), within: 0, hello: Some(hello(2049)) };
    assert_eq!(room.desk.say(1, said, room.now), refused(1, Refusal::TooLong));
}

#[test]
fn reports_go_to_the_leader_and_to_who_is_named() {
    let mut room = Room::new(Limits::default());
    room.arrive(1, "a");
    room.arrive(2, "leader");
    let told = |line| vec![Action::Tell(line, Told::Report { from: id("a"), report: Report::Finished })];
    let say = |room: &mut Room, to| room.desk.say(1, Said::Report { to, report: Report::Finished }, room.now);
    assert_eq!(say(&mut room, None), told(2));
    assert_eq!(say(&mut room, Some(id("leader"))), told(2));
    room.desk.leave(2);
    assert_eq!(say(&mut room, None), [Action::Tell(1, Told::Undelivered { to: None })]);
}
