//! What holds whatever workers do, in any order: calls are answered once, words arrive once and in order, nobody hears
//! of what is not his, and nothing is left behind.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;

use super::tests::{Counting, id, key, ticket};
use super::*;
use nearpath_p2p::message::{Offered, Parcel, Refusal, SessionText, Word};

const NAMES: [&str; 4] = ["a", "b", "c", "leader"];
const JOBS: [&str; 2] = ["one", "two"];

#[derive(Debug, Clone)]
enum Step {
    Arrive { job: usize, name: usize, life: u64 },
    Leave { line: usize },
    Call { line: usize, peer: usize, within: u32 },
    Tell { line: usize, session: usize },
    Carry { line: usize, session: usize },
    HangUp { line: usize, session: usize },
    Report { line: usize, to: Option<usize> },
    Pass { millis: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let line = || 0..12_usize;
    prop_oneof![
        3 => (0..2_usize, 0..4_usize, 1..40_u64).prop_map(|(job, name, life)| Step::Arrive { job, name, life }),
        1 => line().prop_map(|line| Step::Leave { line }),
        4 => (line(), 0..4_usize, 0..8000_u32).prop_map(|(line, peer, within)| Step::Call { line, peer, within }),
        4 => (line(), 0..12_usize).prop_map(|(line, session)| Step::Tell { line, session }),
        3 => (line(), 0..12_usize).prop_map(|(line, session)| Step::Carry { line, session }),
        1 => (line(), 0..12_usize).prop_map(|(line, session)| Step::HangUp { line, session }),
        1 => (line(), prop::option::of(0..4_usize)).prop_map(|(line, to)| Step::Report { line, to }),
        2 => (0..5000_u64).prop_map(|millis| Step::Pass { millis }),
    ]
}

/// The desk with what everybody outside knows.
struct World {
    desk: Desk<Counting>,
    now: Moment,
    millis: u64,
    lines: Vec<LineNo>,
    who: HashMap<LineNo, (usize, usize)>,
    /// Calls without an answer, by line and number.
    open: HashSet<(LineNo, u32)>,
    calls: u32,
    sessions: Vec<SessionText>,
    members: HashMap<[u8; 16], HashSet<(usize, usize)>>,
    /// What was told in a session by whom, and how much of it has arrived; words are numbered.
    said: HashMap<([u8; 16], (usize, usize)), u32>,
    heard: HashMap<([u8; 16], (usize, usize)), u32>,
}

impl World {
    fn new() -> Self {
        let limits = Limits { life: Duration::from_secs(20), kept: 3, sessions: 5, waiting: 3, ..Limits::default() };
        Self {
            desk: Desk::new(key(), limits, Counting::default()),
            now: Moment { at: Instant::now(), unix: 1000 },
            millis: 0,
            lines: Vec::new(),
            who: HashMap::new(),
            open: HashSet::new(),
            calls: 0,
            sessions: Vec::new(),
            members: HashMap::new(),
            said: HashMap::new(),
            heard: HashMap::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Arrive { job, name, life } => self.arrive(job, name, life),
            Step::Leave { line } => self.with_line(line, |world, line| {
                world.desk.leave(line);
                world.gone(line);
            }),
            Step::Call { line, peer, within } => self.with_line(line, |world, line| {
                world.calls += 1;
                world.open.insert((line, world.calls));
                let said =
                    Said::Call { call: world.calls, peer: id(NAMES[peer]), about: String::new(), within, hello: None };
                world.say(line, said);
            }),
            Step::Tell { line, session } => self.with_session(line, session, Self::tell),
            Step::HangUp { line, session } => {
                self.with_session(line, session, |world, line, session| world.say(line, Said::HangUp { session }));
            }
            Step::Carry { line, session } => self.with_session(line, session, |world, line, session| {
                let parcel = Parcel { session, piece: line, has: 0, bytes: Bytes::from_static(b"bytes") };
                let actions = world.desk.carry(line, session, parcel.write());
                world.look(actions);
            }),
            Step::Report { line, to } => self.with_line(line, |world, line| {
                world.say(line, Said::Report { to: to.map(|to| id(NAMES[to])), report: Report::Ready });
            }),
            Step::Pass { millis } => self.pass(millis),
        }
    }

    fn with_line(&mut self, at: usize, f: impl FnOnce(&mut Self, LineNo)) {
        if !self.lines.is_empty() {
            let line = self.lines[at % self.lines.len()];
            f(self, line);
        }
    }

    fn with_session(&mut self, line: usize, at: usize, f: impl FnOnce(&mut Self, LineNo, SessionText)) {
        if !self.sessions.is_empty() {
            let session = self.sessions[at % self.sessions.len()];
            self.with_line(line, |world, line| f(world, line, session));
        }
    }

    fn arrive(&mut self, job: usize, name: usize, life: u64) {
        let line = self.who.len() as LineNo;
        self.who.insert(line, (job, name));
        self.lines.push(line);
        let ticket = ticket(JOBS[job], NAMES[name], self.now.unix + life);
        let actions = self.desk.arrive(line, &ticket, self.now);
        self.look(actions);
    }

    /// A word's number is its candidate's port.
    fn tell(&mut self, line: LineNo, session: SessionText) {
        let who = self.who[&line];
        let member = self.members[&session.0].contains(&who);
        let number = self.said.entry((session.0, who)).or_default();
        *number += u32::from(member);
        let addr = ([10, 0, 0, 1], u16::try_from(*number).unwrap()).into();
        let one = nearpath_p2p::punch::Candidate::new(
            nearpath_p2p::punch::candidate::Kind::Host,
            nearpath_p2p::punch::Transport::Udp,
            addr,
            0,
        );
        self.say(line, Said::Tell { session, word: Word::Offer { candidates: vec![Offered::from(one)] } });
    }

    fn say(&mut self, line: LineNo, said: Said) {
        let actions = self.desk.say(line, said, self.now);
        self.look(actions);
    }

    fn pass(&mut self, millis: u64) {
        self.millis += millis;
        let unix = 1000 + self.millis / 1000;
        self.now = Moment { at: self.now.at + Duration::from_millis(millis), unix };
        let actions = self.desk.tick(self.now);
        self.look(actions);
        assert!(self.desk.next().is_none_or(|at| at > self.now.at), "a tick does all that is due");
    }

    fn gone(&mut self, line: LineNo) {
        self.lines.retain(|one| *one != line);
        self.open.retain(|(at, _)| *at != line);
    }

    fn look(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Close(line, _) => self.gone(line),
                Action::Carry(line, frame) => self.carried(line, &frame),
                Action::Tell(line, told) => {
                    assert!(self.lines.contains(&line), "told to nobody: {told:?}");
                    self.told(line, told);
                }
            }
        }
    }

    fn told(&mut self, line: LineNo, told: Told) {
        let who = self.who[&line];
        match told {
            Told::Granted(granted) => self.granted(line, &granted),
            Told::Refused { call, why } => {
                assert!(self.open.remove(&(line, call)), "one answer a call");
                assert!(!matches!(why, Refusal::Unknown));
            }
            Told::Tell { session, word } => self.word(who, session, &word),
            Told::HungUp { session, .. } => assert!(self.sessions.contains(&session)),
            Told::Report { from, .. } => {
                let job = who.0;
                assert!(self.who.values().any(|(j, name)| *j == job && id(NAMES[*name]) == from));
            }
            Told::Undelivered { .. } => (),
            Told::Welcome(_) | Told::Bye { .. } => panic!("the rim says these"),
        }
    }

    fn granted(&mut self, line: LineNo, granted: &nearpath_p2p::message::Granted) {
        if let Some(call) = granted.call {
            assert!(self.open.remove(&(line, call)), "one answer a call");
        }
        let members = self.members.entry(granted.session.0).or_default();
        members.insert(self.who[&line]);
        assert!(members.len() <= 2);
        assert!(members.iter().all(|(job, _)| *job == self.who[&line].0), "jobs do not meet");
        assert!(granted.expires <= self.now.unix + 20);
        if !self.sessions.contains(&granted.session) {
            self.sessions.push(granted.session);
        }
    }

    /// By the other one of the session: a piece's number is its sender's line.
    fn carried(&self, line: LineNo, frame: &Bytes) {
        let parcel = Parcel::read(frame).unwrap();
        let (from, to) = (self.who[&parcel.piece], self.who[&line]);
        assert!(self.lines.contains(&line) && from != to, "carried to nobody, or back");
        let members = &self.members[&parcel.session.0];
        assert!(members.contains(&from) && members.contains(&to), "only the two of a session hear of it");
    }

    fn word(&mut self, who: (usize, usize), session: SessionText, word: &Word) {
        let members = &self.members[&session.0];
        assert!(members.contains(&who), "only the two of a session hear of it");
        let from = *members.iter().find(|one| **one != who).unwrap();
        let Word::Offer { candidates } = word else { panic!("{word:?}") };
        let heard = self.heard.entry((session.0, from)).or_default();
        *heard += 1;
        assert_eq!(u32::from(candidates[0].addr.port()), *heard, "in order, and none is missing");
        assert!(*heard <= self.said[&(session.0, from)]);
    }
}

proptest! {
    #[test]
    fn the_desk_keeps_its_laws(steps in prop::collection::vec(step(), 1..150)) {
        let mut world = World::new();
        steps.iter().for_each(|step| world.step(step));
        world.pass(10_000);
        prop_assert!(world.open.is_empty(), "calls wait no longer than they asked for: {:?}", world.open);
        for line in world.lines.clone() {
            world.desk.leave(line);
            world.gone(line);
        }
        world.pass(60_000);
        prop_assert_eq!(world.desk.size(), (0, 0, 0));
        prop_assert!(world.desk.workers.is_empty() && world.desk.offices.is_empty() && world.desk.timers.is_empty());
    }
}
