//! What two parties get through, and what a hostile one does not.

use std::os::fd::AsFd;
use std::sync::Arc;

use nearpath_shm::channel::{ReceiveFault, SendFault, State};
use nearpath_shm::descriptor::BadDescriptor;
use nearpath_shm::geometry::Size;
use nearpath_shm::member::{NotAccepted, NotClaimed};
use nearpath_shm::region::{Access, Pages, Region};
use nearpath_shm::{Descriptor, Envelope, Foreign, Kind, Payload, Pool, Slot};

use super::party::{CAPACITY, Pair, SIZES, member, message, seen};

const HEAD: u64 = 4096 + 64;

/// The pair, and its channel as somebody sees it who writes there what he likes.
fn forged() -> (Pair, Arc<Region>) {
    let pair = Pair::new();
    let bytes = nearpath_shm::channel::bytes(CAPACITY) as usize;
    let fd = pair.channel.as_fd().try_clone_to_owned().unwrap();
    (pair, Region::open(fd, bytes, Access::Write).unwrap())
}

fn push(region: &Region, tail: u32, descriptor: Descriptor) {
    region.write(4096 + 192 + 16 * u64::from(tail), &descriptor.to_bytes());
    region.write(4096, &(tail + 1).to_le_bytes());
}

#[test]
fn a_call_and_its_answer() {
    let mut pair = Pair::new();
    pair.caller.send(message(&pair.members[0], Kind::Call, 7, b"how far?")).unwrap();
    pair.caller.flush();
    assert_eq!(pair.members[0].held(), 256, "the slot stays the caller's");
    let call = pair.callee.receive().unwrap().unwrap();
    assert_eq!((call.envelope().call, call.body()), (7, b"how far?".to_vec()));
    assert_eq!(call.head(&mut Vec::new()).unwrap().get(":method"), Some(&b"POST"[..]));
    assert_eq!(pair.members[1].held(), 0, "and the callee has a copy");
    pair.callee.send(message(&pair.members[1], Kind::Answer, 7, b"near")).unwrap();
    pair.callee.flush();
    assert_eq!(pair.caller.receive().unwrap().unwrap().body(), b"near");
    pair.caller.flush();
    pair.callee.flush();
    assert_eq!(pair.members.each_ref().map(|member| member.held()), [0, 0]);
    assert_eq!(Payload::new(call).as_ref(), b"how far?", "it is kept as long as one likes");
}

#[test]
fn a_copy_is_nobodys_slot() {
    let mut pair = Pair::new();
    let mut take = |call| {
        pair.caller.send(message(&pair.members[0], Kind::Call, call, b"body")).unwrap();
        pair.callee.receive().unwrap().unwrap()
    };
    assert!(take(1).into_lease().is_none());
    assert!(take(2).forward(Envelope::new(Kind::Answer, 2)).is_none());
}

/// Slots come back when the peer has taken what was in them, not before: then there is none.
#[test]
fn slots_come_back_by_the_head_alone() {
    let mut pair = Pair::new();
    let large = vec![1; 3000];
    for call in 0..4 {
        pair.caller.send(message(&pair.members[0], Kind::Call, call, &large)).unwrap();
    }
    pair.caller.flush();
    assert_eq!(pair.members[0].claim(4096).unwrap_err(), NotClaimed::Exhausted);
    assert_eq!(pair.callee.receive().unwrap().unwrap().envelope().call, 0);
    assert_eq!(pair.caller.collect(), 1);
    drop(pair.members[0].claim(4096).unwrap());
    assert!(!pair.caller.settled(), "three are unread");
    (1..4).for_each(|call| assert_eq!(pair.callee.receive().unwrap().unwrap().envelope().call, call));
    assert!(pair.caller.settled() && pair.members[0].held() == 0);
}

/// What a message held is not left lying about for whoever may read the pool later.
#[test]
fn what_was_taken_is_cleared() {
    let mut pair = Pair::new();
    let marker = b"the secret of somebody else";
    pair.caller.send(message(&pair.members[0], Kind::Call, 1, marker)).unwrap();
    let bytes = |pair: &Pair| {
        let fd = pair.members[0].pool().as_fd().try_clone_to_owned().unwrap();
        let region = Region::open_read_only(fd, pair.members[0].pool().bytes()).unwrap();
        region.copy(0, region.len()).unwrap()
    };
    let holds = |bytes: &[u8]| bytes.windows(marker.len()).any(|window| window == marker);
    assert!(holds(&bytes(&pair)), "underway, a peer of its sender can read it");
    pair.callee.receive().unwrap().unwrap();
    pair.caller.flush();
    assert!(!holds(&bytes(&pair)));
}

#[test]
fn a_dead_callee_costs_nothing() {
    let mut pair = Pair::new();
    for call in 0..3 {
        pair.caller.send(message(&pair.members[0], Kind::Call, call, b"")).unwrap();
    }
    std::mem::forget(pair.callee.receive().unwrap().unwrap()); // it dies with it
    pair.channel.close(State::CalleeDead);
    pair.caller.flush();
    assert_eq!(pair.members[0].held(), 0);
    let fault = pair.caller.send(message(&pair.members[0], Kind::Call, 3, b"")).unwrap_err();
    assert_eq!(fault.why, SendFault::Closed(State::CalleeDead));
    drop(fault);
    assert_eq!(pair.members[0].held(), 0);
}

#[test]
fn what_a_dead_caller_sent_still_arrives() {
    let mut pair = Pair::new();
    pair.caller.send(message(&pair.members[0], Kind::Event, 1, b"last words")).unwrap();
    pair.channel.close(State::CallerDead);
    drop((pair.caller, pair.members)); // its mapping goes, the peer's stays
    assert_eq!(pair.callee.receive().unwrap().unwrap().body(), b"last words");
    assert_eq!(pair.callee.receive().unwrap_err(), ReceiveFault::Closed(State::CallerDead));
}

/// A sender takes its slots back when the node says that the receiver is dead. If it is not, what it reads is no message.
#[test]
fn who_counts_as_dead_receives_nothing() {
    let mut pair = Pair::new();
    pair.caller.send(message(&pair.members[0], Kind::Event, 1, b"")).unwrap();
    pair.channel.close(State::CalleeDead);
    assert_eq!(pair.callee.receive().unwrap_err(), ReceiveFault::Closed(State::CalleeDead));
}

#[test]
fn a_descriptor_leads_nowhere_but_into_its_makers_slots() {
    let refused = |descriptor: Descriptor| {
        let (mut pair, region) = forged();
        push(&region, 0, descriptor);
        let fault = pair.callee.receive().unwrap_err();
        assert_eq!(pair.channel.state(), State::Broken);
        fault
    };
    let right = Descriptor { slot: Slot::new(0, 0), generation: 1, offset: 0, length: 64 };
    let bad = |fault| ReceiveFault::Refused(NotAccepted::Bad(fault));
    let no_slot = bad(BadDescriptor::NoSuchSlot);
    assert_eq!(refused(Descriptor { slot: Slot::new(0, 24), ..right }), no_slot);
    assert_eq!(refused(Descriptor { slot: Slot::new(2, 0), ..right }), no_slot);
    assert_eq!(refused(Descriptor { slot: Slot(u32::MAX), ..right }), no_slot);
    assert_eq!(refused(Descriptor { generation: 0, ..right }), bad(BadDescriptor::Generation));
    assert_eq!(refused(Descriptor { offset: 4, ..right }), bad(BadDescriptor::Unaligned));
    assert_eq!(refused(Descriptor { length: 257, ..right }), bad(BadDescriptor::TooLong));
    assert_eq!(refused(Descriptor { offset: u32::MAX - 7, ..right }), bad(BadDescriptor::TooLong));
    assert!(matches!(refused(right), ReceiveFault::Malformed(_)), "a slot without a message");
}

/// A descriptor of somebody else's, pushed by a third party, names that party's own bytes.
#[test]
fn a_stolen_descriptor_names_the_thiefs_own_slot() {
    let (mut pair, region) = forged();
    let victim = member(3);
    let secret = message(&victim, Kind::Call, 9, b"not yours to send");
    let stolen = Descriptor {
        slot: secret.lease.slot(),
        generation: secret.lease.generation(),
        offset: 0,
        length: secret.length,
    };
    push(&region, 0, stolen);
    assert!(matches!(pair.callee.receive().unwrap_err(), ReceiveFault::Malformed(_)), "the thief's slot is empty");
}

#[test]
fn a_receiver_that_lies_about_its_head_spoils_its_own_messages_only() {
    let (mut pair, region) = forged();
    let channel = nearpath_shm::Channel::create(CAPACITY).unwrap();
    let other = member(3);
    let [mut aside, mut third] = super::party::ends(&channel, &pair.members[0], &other);
    aside.send(message(&pair.members[0], Kind::Call, 1, b"for another")).unwrap();
    for call in 0..3 {
        pair.caller.send(message(&pair.members[0], Kind::Call, call, b"")).unwrap();
    }
    region.write(HEAD, &3u32.to_le_bytes());
    assert_eq!(pair.caller.collect(), 3);
    region.write(HEAD, &99u32.to_le_bytes());
    assert_eq!(pair.caller.collect(), 0);
    let fault = pair.caller.send(message(&pair.members[0], Kind::Call, 3, b""));
    drop(fault);
    pair.caller.flush();
    aside.flush();
    assert_eq!(third.receive().unwrap().unwrap().body(), b"for another");
}

#[test]
fn a_sender_that_scribbles_in_its_header_changes_nothing() {
    let sizes = [Size { size: 64, count: 1 }];
    let pool = Pool::create_own(&sizes).unwrap();
    let fd = || pool.as_fd().try_clone_to_owned().unwrap();
    assert!(Foreign::open(fd(), pool.bytes()).is_ok());
    assert!(Foreign::open(fd(), pool.bytes() + 4096).is_err());
    let huge = Region::create_read_only_for_others("np-test", 4096).unwrap();
    huge.write(0, &pool.geometry().to_bytes());
    let fd = huge.as_fd().try_clone_to_owned().unwrap();
    assert!(Foreign::open(fd, 4096).is_err(), "the header promises more than there is");
}

#[test]
fn a_pool_that_others_can_write_is_refused() {
    let pool = Pool::create(&SIZES, Pages::Small).unwrap();
    let fd = pool.as_fd().try_clone_to_owned().unwrap();
    assert_eq!(Foreign::open(fd, pool.bytes()).unwrap_err().kind(), std::io::ErrorKind::InvalidData);
    let own = member(1);
    drop(seen(&own));
}

/// A party whose batch never ends flushes never: it needs no more slots than the ring has places, and some.
#[test]
fn slots_come_back_without_a_flush() {
    let mut pair = Pair::new();
    for call in 0..1000 {
        pair.caller.send(message(&pair.members[0], Kind::Event, call, b"")).unwrap();
        assert_eq!(pair.callee.receive().unwrap().unwrap().envelope().call, call);
    }
    assert!(pair.members[0].held() <= 16 * 256);
}

/// Both at once, each on a thread of its own: every message is whole, and in its place.
#[test]
fn thousands_pass_between_two_threads() {
    const MESSAGES: u64 = 50_000;
    let Pair { mut caller, mut callee, members: [one, _two], .. } = Pair::new();
    let receiving = std::thread::spawn(move || {
        for expected in 0..MESSAGES {
            let message = loop {
                match callee.receive().unwrap() {
                    Some(message) => break message,
                    None => {
                        callee.flush();
                        std::thread::yield_now();
                    }
                }
            };
            assert_eq!(message.envelope().call, expected);
            assert!(message.body().chunks(8).all(|chunk| chunk == expected.to_le_bytes()));
        }
        callee.flush();
    });
    for number in 0..MESSAGES {
        let body = number.to_le_bytes().repeat(20);
        while caller.room() == 0 {
            caller.flush();
            std::thread::yield_now();
        }
        caller.send(message(&one, Kind::Event, number, &body)).unwrap();
        if number % 5 == 0 {
            caller.flush();
        }
    }
    receiving.join().unwrap();
    caller.flush();
    assert!(caller.settled() && one.held() == 0);
}
