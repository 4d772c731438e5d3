//! Who waits for room is woken, whatever the order of its last look and the peer's answer.

use std::os::fd::AsFd;
use std::sync::Arc;

use bytes::Bytes;
use nearpath_shm::desk::{self, Desk};
use nearpath_shm::geometry::Size;
use nearpath_shm::spin::Spin;
use nearpath_shm::{Channel, End, Envelope, Foreign, Kind, Member, Party, Pool, Side};
use nearpath_types::InstanceId;

use super::Link;
use super::outgoing::ALL;
use crate::outflow::WINDOW;
use crate::post::outbox::{Whole, begin};
use crate::post::payload::Load;
use crate::post::words::Caller;

/// A party that sends, in a strict domain, and its peer.
struct Pair {
    member: Arc<Member>,
    link: Link,
    peer: End,
    desk: Desk,
}

fn pair() -> Pair {
    let sizes = [Size { size: 4096, count: 64 }];
    let pools = [(); 2].map(|()| Arc::new(Pool::create_own(&sizes).unwrap()));
    let foreign = |pool: &Pool| Foreign::open(pool.as_fd().try_clone_to_owned().unwrap(), pool.bytes()).unwrap();
    let parties = [1, 2].map(|number| Party::new(number).unwrap());
    let members = [0, 1].map(|at| Member::new(Arc::clone(&pools[at]), parties[at], u64::MAX));
    let desks = [(); 2].map(|()| Desk::create(desk::Kind::None, Spin::default()).unwrap());
    let channel = Channel::create(16).unwrap();
    let own = channel.end(Side::Caller, Arc::clone(&members[0]), parties[1], desks[1].knocker());
    let peer = channel.end(Side::Callee, Arc::clone(&members[1]), parties[0], desks[0].knocker());
    let caller = Arc::new(Caller::new(None, None));
    let link = Link::new(own.strictly(foreign(&pools[1])), Side::Caller, caller, InstanceId(1));
    let [member, _] = members;
    let [desk, _] = desks;
    Pair { member, link, peer: peer.strictly(foreign(&pools[0])), desk }
}

impl Pair {
    /// Sends as much of a long body as there is room for. Its peer puts bodies together: there is no window but the ring.
    fn begin(&mut self) {
        let body = Bytes::from(vec![7; 1 << 20]);
        let envelope = Envelope::new(Kind::Call, 1);
        let load = &mut Load::Kept(&body);
        let flow = begin(&mut self.link.end, &self.member, envelope, &[], load, Whole::Here).unwrap().unwrap();
        self.link.flow(1, flow);
        self.link.hear(1, ALL);
        self.link.pump(&self.member);
    }

    fn take(&mut self) -> usize {
        std::iter::from_fn(|| self.peer.receive().unwrap()).count()
    }

    fn sleeps(&mut self) -> bool {
        self.desk.announce(|| self.link.ready(&self.member))
    }

    /// Whether the party still counts as asleep: nobody has rung.
    fn is_asleep(&self) -> bool {
        self.desk.knocker().knock()
    }
}

#[test]
fn room_that_was_made_while_the_party_was_awake_rings_when_it_sleeps() {
    let mut pair = pair();
    pair.begin();
    assert_eq!(pair.take(), WINDOW);
    assert!(!pair.sleeps(), "there is room");
    pair.link.pump(&pair.member); // the ring is full again, and nothing of that was taken
    pair.peer.flush(); // what was taken before: nobody sleeps
    assert!(pair.sleeps());
    assert_eq!(pair.take(), WINDOW);
    pair.peer.flush();
    assert!(!pair.is_asleep(), "nobody rang");
}

#[test]
fn a_link_that_is_wound_up_is_told_of_the_last_message_that_was_read() {
    let mut pair = pair();
    let body = Bytes::from_static(b"event");
    for call in 0..2 {
        let envelope = Envelope::new(Kind::Event, call);
        let load = &mut Load::Kept(&body);
        assert!(begin(&mut pair.link.end, &pair.member, envelope, &[], load, Whole::Here).unwrap().is_none());
    }
    pair.link.withdrawn = true;
    assert!(!pair.link.end.settled() && !pair.link.end.settles());
    assert!(pair.peer.receive().unwrap().is_some());
    pair.peer.flush(); // one of two, while the party is awake
    assert!(pair.sleeps());
    assert_eq!(pair.take(), 1);
    pair.peer.flush();
    assert!(!pair.is_asleep(), "nobody rang");
    assert!(!pair.sleeps(), "it can end");
    assert!(pair.link.end.settled());
    assert!(pair.sleeps(), "it has nothing more to look at");
}
