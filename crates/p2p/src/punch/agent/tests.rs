//! A follower, and a leader's words written by hand.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use nearpath_types::SpiffeId;

use super::{Action, Agent, Event, Message, Settings, State};
use crate::punch::candidate::{Candidate, Key, Kind, Transport};
use crate::punch::probe::Probe;
use crate::punch::session::{Grant, Role, Session};

const BASE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), 40_000);

/// The leader's side, in miniature.
struct Leader {
    session: Session,
    number: u64,
    follower: Agent,
    now: Instant,
}

fn key(port: u16) -> Key {
    Key { transport: Transport::Udp, base: BASE, remote: SocketAddr::from(([192, 0, 2, 1], port)) }
}

impl Leader {
    fn new() -> Self {
        let grant = Grant { id: [1; 16], secret: [2; 32], expires: 9 };
        let (a, b) = (SpiffeId::gateway("test", "a"), SpiffeId::gateway("test", "b"));
        let now = Instant::now();
        let session = |me, peer| Session::new(&grant, me, peer, now + Duration::from_secs(60)).unwrap();
        let mut follower = Agent::new(session(&b, &a), Settings::default(), 3, now);
        let local = Event::Local { kind: Kind::Host, transport: Transport::Udp, addr: BASE, base: BASE };
        follower.take(local, now);
        Self { session: session(&a, &b), number: 0, follower, now }
    }

    /// Sends a probe from a port: the probes that come back, and the pair that the follower takes.
    fn say(&mut self, port: u16, answer: Option<u64>, nominates: Option<u16>) -> (Vec<Probe>, Option<Key>) {
        self.number += 1;
        let ask = answer.is_none().then_some(self.number);
        let probe = Probe { from: Role::Leader, nonce: 1, ask, answer, nominates, seen: None };
        let bytes = probe.encode(&self.session).to_vec();
        let actions = self.follower.take(Event::Datagram { base: BASE, from: key(port).remote, bytes }, self.now);
        let back = actions.iter().filter_map(|action| match action {
            Action::Send { bytes, .. } => Probe::decode(bytes, &self.session).ok(),
            _ => None,
        });
        let used = actions.iter().find_map(|action| match action {
            Action::Use(key) => Some(*key),
            _ => None,
        });
        (back.collect(), used)
    }

    /// What the follower does when that happens to it.
    fn happens(&mut self, event: Event) -> Vec<Action> {
        self.follower.take(event, self.now)
    }

    /// Makes a pair work for the follower.
    fn prove(&mut self, port: u16) {
        let (back, _) = self.say(port, None, None);
        let asked = back.iter().find_map(|probe| probe.ask).expect("it asks as well");
        self.say(port, Some(asked), None);
    }
}

#[test]
fn only_what_works_is_agreed_to() {
    let mut leader = Leader::new();
    let (back, used) = leader.say(1, None, Some(1));
    assert_eq!((back.len(), back[0].nominates, used), (1, None, None));
    leader.prove(1);
    let (back, used) = leader.say(1, None, Some(1));
    assert_eq!((back.len(), back[0].nominates, used), (1, Some(1), Some(key(1))));
}

#[test]
fn the_newest_nomination_counts_and_may_be_said_again() {
    let mut leader = Leader::new();
    leader.prove(1);
    leader.prove(2);
    assert_eq!(leader.say(2, None, Some(2)).1, Some(key(2)));
    let (back, used) = leader.say(1, None, Some(1));
    assert_eq!((back[0].nominates, used), (None, None), "it is older");
    let (back, used) = leader.say(1, None, Some(2));
    assert_eq!((back[0].nominates, used), (None, None), "it was for another pair");
    let (back, used) = leader.say(2, None, Some(2));
    assert_eq!((back[0].nominates, used), (Some(2), None), "its answer was lost");
    assert_eq!(leader.say(1, None, Some(3)).1, Some(key(1)));
    assert_eq!(leader.follower.state(), State::Direct(key(1)));
}

#[test]
fn who_has_settled_for_the_relay_agrees_to_nothing() {
    let mut leader = Leader::new();
    leader.prove(1);
    leader.follower.take(Event::Told(Message::Relay), leader.now);
    assert_eq!(leader.say(1, None, Some(1)), (Vec::new(), None));
    assert_eq!(leader.follower.state(), State::Relayed);
}

#[test]
fn an_answer_counts_where_the_ask_went_and_once() {
    let mut leader = Leader::new();
    let (back, _) = leader.say(1, None, None);
    leader.say(2, Some(back[0].ask.unwrap()), None);
    assert_eq!(leader.say(1, None, Some(1)).1, None, "the answer came from elsewhere");
}

#[test]
fn each_ask_is_answered_by_one_probe_with_where_it_came_from() {
    let mut leader = Leader::new();
    for port in 1..=16 {
        let (back, _) = leader.say(port, None, None);
        assert_eq!((back.len(), back[0].seen), (1, Some(key(port).remote)));
    }
    assert!(leader.say(17, None, None).0.is_empty(), "so many addresses are none of one peer's");
}

/// A follower that has dialled the one address that it was offered.
fn dialled() -> (Leader, Key) {
    let mut leader = Leader::new();
    let key = Key { transport: Transport::Tcp, ..key(40_001) };
    leader.happens(Event::Local { kind: Kind::Host, transport: Transport::Tcp, addr: BASE, base: BASE });
    let offered = Candidate::new(Kind::Reflexive, Transport::Tcp, key.remote, 1);
    assert!(is_dialled(&leader.happens(Event::Told(Message::Offer(vec![offered])))));
    (leader, key)
}

fn is_dialled(actions: &[Action]) -> bool {
    actions.iter().any(|action| matches!(action, Action::Dial { .. }))
}

#[test]
fn a_dial_that_took_longer_than_its_interval_is_followed_by_the_next() {
    let (mut leader, key) = dialled();
    leader.now += Duration::from_millis(320);
    assert!(is_dialled(&leader.happens(Event::Ended(key))));
}

/// Its handshake was through on this side alone, and the peer has begun anew.
#[test]
fn a_connection_that_ends_before_it_worked_is_dialled_again_after_an_interval() {
    let (mut leader, key) = dialled();
    leader.happens(Event::Connected(key));
    leader.now += Duration::from_millis(300);
    assert!(!is_dialled(&leader.happens(Event::Ended(key))));
    leader.now += Duration::from_millis(100);
    assert!(is_dialled(&leader.happens(Event::Tick)));
}

#[test]
fn a_connection_is_closed_once_nothing_has_come_for_two_seconds() {
    let (mut leader, key) = dialled();
    leader.happens(Event::Connected(key));
    leader.now += Duration::from_millis(1_900);
    let probe = Probe { from: Role::Leader, nonce: 1, ask: Some(1), answer: None, nominates: None, seen: None };
    let bytes = probe.encode(&leader.session).to_vec();
    leader.happens(Event::Read { key, bytes });
    let closed = [1_900, 200].map(|later| {
        leader.now += Duration::from_millis(later);
        leader.happens(Event::Tick).contains(&Action::Close(key))
    });
    assert_eq!(closed, [false, true]);
}
