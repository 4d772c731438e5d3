//! Two parties on a channel within one process: what they get through, and what a hostile one does not.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nearpath_shm::channel::{ReceiveFault, SendFault, State};
use nearpath_shm::desk::{self, Desk};
use nearpath_shm::envelope::{BadEnvelope, flag};
use nearpath_shm::geometry::Size;
use nearpath_shm::member::NotAccepted;
use nearpath_shm::reclaim;
use nearpath_shm::region::{Access, Pages, Region};
use nearpath_shm::spin::Spin;
use nearpath_shm::{Channel, Descriptor, Draft, End, Envelope, Kind, Member, Outgoing, Party, Pool, Side, Slot};

const CAPACITY: u32 = 16;

struct Pair {
    pool: Arc<Pool>,
    channel: Channel,
    caller: End,
    callee: End,
    members: [Arc<Member>; 2],
    desks: [Desk; 2],
}

fn party(number: u16) -> Party {
    Party::new(number).unwrap()
}

fn pair() -> Pair {
    let sizes = [Size { size: 256, count: 64 }, Size { size: 4096, count: 16 }];
    let pool = Arc::new(Pool::create(&sizes, Pages::Small).unwrap());
    let channel = Channel::create(CAPACITY).unwrap();
    let members = [1, 2].map(|number| Member::new(Arc::clone(&pool), party(number), u64::MAX));
    let desks = [(); 2].map(|()| Desk::create(desk::Kind::Futex, Spin::default()).unwrap());
    let caller = channel.end(Side::Caller, Arc::clone(&members[0]), party(2), desks[1].knocker());
    let callee = channel.end(Side::Callee, Arc::clone(&members[1]), party(1), desks[0].knocker());
    Pair { pool, channel, caller, callee, members, desks }
}

fn message(member: &Arc<Member>, kind: Kind, call: u64, body: &[u8]) -> Outgoing {
    let mut draft = Draft::new(member.claim(256).unwrap());
    draft.field(":method", b"POST").unwrap();
    draft.body(body).unwrap();
    draft.finish(Envelope::new(kind, call))
}

#[test]
fn a_call_and_its_answer() {
    let mut pair = pair();
    pair.caller.send(message(&pair.members[0], Kind::Call, 7, b"how far?")).unwrap();
    pair.caller.flush();
    let call = pair.callee.receive().unwrap().unwrap();
    assert_eq!((call.envelope().kind, call.envelope().call, call.envelope().total), (Kind::Call, 7, 8));
    let mut scratch = Vec::new();
    assert_eq!(call.head(&mut scratch).unwrap().get(":method"), Some(&b"POST"[..]));
    assert_eq!(call.body(), b"how far?");
    // SAFETY: the only other party is this thread, and it writes nothing.
    #[allow(unsafe_code)]
    let in_place = unsafe { call.body_in_place() };
    assert_eq!(in_place, b"how far?");
    assert_eq!(pair.members[0].held(), 0, "the slot is the callee's now");

    let mut answer = Draft::new(call.into_lease().unwrap());
    answer.body(b"near").unwrap();
    pair.callee.send(answer.finish(Envelope { status: 200, ..Envelope::new(Kind::Answer, 7) })).unwrap();
    pair.callee.flush();
    let answer = pair.caller.receive().unwrap().unwrap();
    assert_eq!((answer.envelope().status, answer.body()), (200, b"near".to_vec()));
    drop(answer);
    assert!(reclaim::usage(&pair.pool).is_empty());
    assert_eq!(pair.channel.counted(Side::Caller).messages, 1);
}

#[test]
fn a_body_goes_on_without_a_copy() {
    let mut pair = pair();
    pair.caller.send(message(&pair.members[0], Kind::Call, 1, b"body")).unwrap();
    let call = pair.callee.receive().unwrap().unwrap();
    let slot = call.into_lease().unwrap().slot();
    pair.caller.send(message(&pair.members[0], Kind::Call, 2, b"body")).unwrap();
    let call = pair.callee.receive().unwrap().unwrap();
    pair.callee.send(call.forward(Envelope { status: 201, ..Envelope::new(Kind::Answer, 2) }).unwrap()).unwrap();
    let answer = pair.caller.receive().unwrap().unwrap();
    assert_eq!((answer.envelope().call, answer.body()), (2, b"body".to_vec()));
    assert_eq!(answer.into_lease().unwrap().slot(), slot, "the slot used last is used first");
}

#[test]
fn a_full_ring_gives_the_message_back() {
    let mut pair = pair();
    for call in 0..u64::from(CAPACITY) {
        assert_eq!(pair.caller.credits(), CAPACITY - call as u32);
        pair.caller.send(message(&pair.members[0], Kind::Call, call, b"")).unwrap();
    }
    let fault = pair.caller.send(message(&pair.members[0], Kind::Call, 99, b"x")).unwrap_err();
    assert_eq!(fault.why, SendFault::Full);
    assert!(!pair.caller.starve());
    drop(pair.callee.receive().unwrap().unwrap());
    pair.callee.flush();
    pair.caller.send(fault.message.unwrap()).unwrap();
    let calls: Vec<u64> =
        std::iter::from_fn(|| pair.callee.receive().unwrap()).map(|call| call.envelope().call).collect();
    assert_eq!(calls, (1..16).chain([99]).collect::<Vec<_>>());
}

#[test]
fn a_dead_callee_gives_back_what_it_did_not_take() {
    let mut pair = pair();
    pair.caller.send(message(&pair.members[0], Kind::Call, 1, b"")).unwrap();
    pair.caller.send(message(&pair.members[0], Kind::Call, 2, b"")).unwrap();
    let taken = pair.callee.receive().unwrap().unwrap();
    std::mem::forget(taken); // it dies with it
    pair.channel.close(State::CalleeDead);
    pair.caller.flush();
    let swept = reclaim::sweep(&pair.pool, |p| p == party(1), |_, _, _, _| false);
    assert_eq!((swept.freed, reclaim::usage(&pair.pool).len()), (1, 0));
    let fault = pair.caller.send(message(&pair.members[0], Kind::Call, 3, b"")).unwrap_err();
    assert_eq!(fault.why, SendFault::Closed(State::CalleeDead));
    assert_eq!(pair.caller.receive().unwrap_err(), ReceiveFault::Closed(State::CalleeDead));
}

#[test]
fn what_a_dead_caller_sent_still_arrives() {
    let mut pair = pair();
    pair.caller.send(message(&pair.members[0], Kind::Event, 1, b"last words")).unwrap();
    let lost = pair.members[0].claim(256).unwrap().offer(party(2)).unwrap();
    std::mem::forget(lost); // it dies between offering and pushing
    pair.channel.close(State::CallerDead);
    let in_ring = |_, _, slot, generation| pair.channel.holds(Side::Caller, slot, generation);
    let swept = reclaim::sweep(&pair.pool, |p| p == party(2), in_ring);
    assert_eq!((swept.freed, swept.underway), (1, 1));
    assert_eq!(pair.callee.receive().unwrap().unwrap().body(), b"last words");
    assert_eq!(pair.callee.receive().unwrap_err(), ReceiveFault::Closed(State::CallerDead));
    assert!(reclaim::usage(&pair.pool).is_empty());
}

/// A caller that writes in the ring whatever it likes.
struct Forger {
    pair: Pair,
    region: Arc<Region>,
    tail: u32,
}

impl Forger {
    fn new() -> Self {
        let pair = pair();
        let bytes = nearpath_shm::channel::bytes(CAPACITY) as usize;
        let region = Region::open(pair.channel.as_fd().try_clone_to_owned().unwrap(), bytes, Access::Write).unwrap();
        Self { pair, region, tail: 0 }
    }

    fn push(&mut self, descriptor: Descriptor) {
        self.region.write(4096 + 192 + 16 * u64::from(self.tail % CAPACITY), &descriptor.to_bytes());
        self.tail = self.tail.wrapping_add(1);
        self.region.write(4096, &self.tail.to_le_bytes());
    }

    fn refused(mut self, descriptor: Descriptor) -> ReceiveFault {
        self.push(descriptor);
        let fault = self.pair.callee.receive().unwrap_err();
        assert_eq!(self.pair.channel.state(), State::Broken);
        assert_eq!(self.pair.callee.receive().unwrap_err(), ReceiveFault::Closed(State::Broken));
        assert_eq!(self.pair.members[1].held(), 0);
        fault
    }

    /// A slot that the caller has rightly offered, with this much written in it.
    fn offered(&self, bytes: &[u8]) -> Descriptor {
        let mut lease = self.pair.members[0].claim(256).unwrap();
        lease.write(0, bytes);
        let offer = lease.offer(party(2)).unwrap();
        let descriptor = offer.descriptor(0, 256);
        offer.sent();
        descriptor
    }
}

#[test]
fn forged_descriptors_are_refused() {
    let refused = |change: fn(&mut Descriptor)| {
        let forger = Forger::new();
        let mut descriptor = forger.offered(&Envelope::new(Kind::Call, 1).to_bytes());
        change(&mut descriptor);
        matches!(forger.refused(descriptor), ReceiveFault::Refused(_))
    };
    assert!(refused(|d| d.slot = Slot::new(2, 0)));
    assert!(refused(|d| d.slot = Slot::new(0, 64)));
    assert!(refused(|d| d.slot = Slot(u32::MAX)));
    assert!(refused(|d| d.slot = Slot::new(0, 1)));
    assert!(refused(|d| d.generation += 1));
    assert!(refused(|d| d.generation = 0));
    assert!(refused(|d| d.offset = 4));
    assert!(refused(|d| d.offset = 8));
    assert!(refused(|d| d.length = 257));
    assert!(refused(|d| d.length = 63));
    assert!(refused(|d| (d.offset, d.length) = (u32::MAX - 7, 64)));
}

#[test]
fn stolen_descriptors_are_refused() {
    let not_offered = ReceiveFault::Refused(NotAccepted::NotOffered);
    let forger = Forger::new();
    let third = Member::new(Arc::clone(&forger.pair.pool), party(3), u64::MAX);
    let offer = third.claim(256).unwrap().offer(party(2)).unwrap();
    let stolen = offer.descriptor(0, 64);
    offer.sent();
    assert_eq!(forger.refused(stolen), not_offered, "offered by somebody else");

    let forger = Forger::new();
    let offer = forger.pair.members[0].claim(256).unwrap().offer(party(3)).unwrap();
    let stolen = offer.descriptor(0, 64);
    offer.sent();
    assert_eq!(forger.refused(stolen), not_offered, "offered to somebody else");

    let mut forger = Forger::new();
    let used = forger.offered(&Envelope::new(Kind::Call, 1).to_bytes());
    forger.push(used);
    drop(forger.pair.callee.receive().unwrap().unwrap());
    assert_eq!(forger.refused(used), not_offered, "from an earlier life");
}

#[test]
fn malformed_messages_are_refused_and_their_slots_freed() {
    let forger = Forger::new();
    let pool = Arc::clone(&forger.pair.pool);
    let descriptor = forger.offered(&[9; 64]);
    assert_eq!(forger.refused(descriptor), ReceiveFault::Malformed(BadEnvelope::Version));
    assert!(reclaim::usage(&pool).is_empty());
}

#[test]
fn an_impossible_index_breaks_the_channel() {
    let mut forger = Forger::new();
    forger.region.write(4096, &(CAPACITY + 1).to_le_bytes());
    assert!(matches!(forger.pair.callee.receive(), Err(ReceiveFault::Poisoned(_))));
    let mut forger = Forger::new();
    forger.region.write(4096 + 64, &1u32.to_le_bytes());
    for _ in 0..CAPACITY {
        let _ = forger.pair.caller.send(message(&forger.pair.members[0], Kind::Call, 1, b""));
    }
    let fault = forger.pair.caller.send(message(&forger.pair.members[0], Kind::Call, 1, b""));
    assert!(fault.is_ok(), "a head that claims room lies about the consumer's own entries only");
    forger.region.write(4096 + 64, &99u32.to_le_bytes());
    let fault = forger.pair.caller.send(message(&forger.pair.members[0], Kind::Call, 1, b"")).unwrap_err();
    assert_eq!(fault.why, SendFault::Closed(State::Broken));
}

/// A writer that goes on writing after it has sent: the receiver works with its copy.
#[test]
fn a_write_after_the_send_changes_no_copy() {
    let mut forger = Forger::new();
    let descriptor = forger.offered(&Envelope { total: 0, ..Envelope::new(Kind::Call, 5) }.to_bytes());
    forger.push(descriptor);
    let call = forger.pair.callee.receive().unwrap().unwrap();
    let pool = &forger.pair.pool;
    let hostile = Region::open(pool.as_fd().try_clone_to_owned().unwrap(), pool.bytes(), Access::Write).unwrap();
    let at = pool.geometry().slot_offset(descriptor.slot).unwrap();
    hostile.write(at, &[0xff; 256]);
    assert_eq!((call.envelope().call, call.envelope().head, call.body_len()), (5, 0, 0));
    assert_eq!(call.head(&mut Vec::new()).unwrap().count(), 0);
}

#[test]
fn parts_and_flags_pass() {
    let mut pair = pair();
    let part = Envelope { flags: flag::MORE, total: 10_000, ..Envelope::new(Kind::Part, 3) };
    let mut draft = Draft::new(pair.members[0].claim(4096).unwrap());
    draft.body(&vec![1; draft.room() as usize]).unwrap();
    assert!(draft.body(&[1]).is_err() && draft.field("late", b"").is_err());
    pair.caller.send(draft.finish(part)).unwrap();
    let part = pair.callee.receive().unwrap().unwrap();
    assert!(part.envelope().has(flag::MORE) && !part.envelope().has(flag::PARTS));
    assert_eq!((part.body_len(), part.envelope().total), (4096 - 64, 10_000));
}

#[test]
fn a_desk_wakes_its_thread() {
    for kind in [desk::Kind::Futex, desk::Kind::Event] {
        let mut pair = pair();
        pair.desks[1] = Desk::create(kind, Spin::default()).unwrap();
        let knocker = pair.desks[1].knocker();
        pair.caller = pair.channel.end(Side::Caller, Arc::clone(&pair.members[0]), party(2), knocker);
        let [_, mut desk] = pair.desks;
        let mut callee = pair.callee;
        let thread = std::thread::spawn(move || {
            while !callee.ready() {
                desk.wait(0, Some(Duration::from_secs(30)), || callee.ready());
            }
            callee.receive().unwrap().unwrap().body()
        });
        pair.caller.send(message(&pair.members[0], Kind::Call, 1, b"wake up")).unwrap();
        pair.caller.flush();
        assert_eq!(thread.join().unwrap(), b"wake up");
    }
}

#[test]
fn a_desk_in_an_event_loop() {
    let desk = Desk::create_polled(Spin::default()).unwrap();
    let readable = || {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(desk.event().unwrap(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::fs::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    assert!(!desk.announce(|| true) && !desk.knocker().knock(), "awake: nobody rings");
    assert!(desk.announce(|| false));
    assert!(desk.knocker().knock() && !desk.knocker().knock(), "one ring a sleep");
    assert!(readable());
    desk.awake();
    assert!(!readable() && !desk.knocker().knock());
    assert!(desk.knocker().core() > 0);
}

#[test]
fn others_regions_are_no_channels_or_desks() {
    let pair = pair();
    let fd = || pair.channel.as_fd().try_clone_to_owned().unwrap();
    assert!(Channel::open(fd(), CAPACITY).is_ok());
    assert!(Channel::open(fd(), 2 * CAPACITY * 16).is_err());
    assert!(Channel::open(fd(), 15).is_err());
    assert!(Pool::open(fd(), nearpath_shm::channel::bytes(CAPACITY) as usize).is_err());
    assert!(Desk::open(fd(), None, Spin::default()).is_err());
    let pool = pair.pool.as_fd().try_clone_to_owned().unwrap();
    assert_eq!(Pool::open(pool, pair.pool.bytes()).unwrap().geometry(), pair.pool.geometry());
}
