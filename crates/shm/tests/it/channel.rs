//! Two endpoints on a channel within one process: what they get through, and what a hostile one
//! does not.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nearpath_shm::channel::{ChannelReceiveError, ChannelSendError, ChannelState};
use nearpath_shm::endpoint::AcceptOfferError;
use nearpath_shm::envelope::{EnvelopeError, flag};
use nearpath_shm::geometry::ClassSpec;
use nearpath_shm::reclaim;
use nearpath_shm::region::{MapAccess, PageKind, Region};
use nearpath_shm::spin::SpinPolicy;
use nearpath_shm::wakeup_cell::{self, WakeupCell};
use nearpath_shm::{
    Channel, ChannelEnd, ChannelSide, Descriptor, EndpointId, Envelope, MessageDraft, MessageKind,
    OutgoingMessage, PoolEndpoint, SlotId, SlotPool,
};

const RING_CAPACITY: u32 = 16;

struct ConnectedPair {
    pool: Arc<SlotPool>,
    channel: Channel,
    caller: ChannelEnd,
    callee: ChannelEnd,
    endpoints: [Arc<PoolEndpoint>; 2],
    cells: [WakeupCell; 2],
}

fn endpoint_id(number: u16) -> EndpointId {
    EndpointId::new(number).unwrap()
}

fn connected_pair() -> ConnectedPair {
    let sizes = [
        ClassSpec {
            size: 256,
            count: 64,
        },
        ClassSpec {
            size: 4096,
            count: 16,
        },
    ];
    let pool = Arc::new(SlotPool::create(&sizes, PageKind::Small).unwrap());
    let channel = Channel::create(RING_CAPACITY).unwrap();
    let members =
        [1, 2].map(|number| PoolEndpoint::new(Arc::clone(&pool), endpoint_id(number), u64::MAX));
    let cells = [(); 2].map(|()| {
        WakeupCell::create(wakeup_cell::WakeupKind::Futex, SpinPolicy::default()).unwrap()
    });
    let caller = channel.attach_end(
        ChannelSide::Caller,
        Arc::clone(&members[0]),
        endpoint_id(2),
        cells[1].wakeup_signal(),
    );
    let callee = channel.attach_end(
        ChannelSide::Callee,
        Arc::clone(&members[1]),
        endpoint_id(1),
        cells[0].wakeup_signal(),
    );
    ConnectedPair {
        pool,
        channel,
        caller,
        callee,
        endpoints: members,
        cells,
    }
}

fn new_message(
    member: &Arc<PoolEndpoint>,
    kind: MessageKind,
    call: u64,
    body: &[u8],
) -> OutgoingMessage {
    let mut draft = MessageDraft::new(member.claim_slot(256).unwrap());
    draft.add_field(":method", b"POST").unwrap();
    draft.append_body(body).unwrap();
    draft.finish(Envelope::new(kind, call))
}

#[test]
fn a_call_is_answered() {
    let mut pair = connected_pair();
    pair.caller
        .send_message(new_message(
            &pair.endpoints[0],
            MessageKind::Call,
            7,
            b"how far?",
        ))
        .unwrap();
    pair.caller.flush_batch();
    let call = pair.callee.receive_message().unwrap().unwrap();
    assert_eq!(
        (
            call.envelope().kind,
            call.envelope().call,
            call.envelope().total
        ),
        (MessageKind::Call, 7, 8)
    );
    let mut scratch = Vec::new();
    assert_eq!(
        call.copy_head(&mut scratch).unwrap().get(":method"),
        Some(&b"POST"[..])
    );
    assert_eq!(call.body_copy(), b"how far?");
    // SAFETY: the only other endpoint is this thread, and it writes nothing.
    #[allow(unsafe_code)]
    let in_place = unsafe { call.body_in_place() };
    assert_eq!(in_place, b"how far?");
    assert_eq!(
        pair.endpoints[0].held_bytes(),
        0,
        "the slot is the callee's now"
    );

    let mut answer = MessageDraft::new(call.into_lease().unwrap());
    answer.append_body(b"near").unwrap();
    pair.callee
        .send_message(answer.finish(Envelope {
            status: 200,
            ..Envelope::new(MessageKind::Answer, 7)
        }))
        .unwrap();
    pair.callee.flush_batch();
    let answer = pair.caller.receive_message().unwrap().unwrap();
    assert_eq!(
        (answer.envelope().status, answer.body_copy()),
        (200, b"near".to_vec())
    );
    drop(answer);
    assert!(reclaim::slot_usage(&pair.pool).is_empty());
    assert_eq!(pair.channel.read_counters(ChannelSide::Caller).messages, 1);
}

#[test]
fn a_body_is_forwarded_without_a_copy() {
    let mut pair = connected_pair();
    pair.caller
        .send_message(new_message(
            &pair.endpoints[0],
            MessageKind::Call,
            1,
            b"body",
        ))
        .unwrap();
    let call = pair.callee.receive_message().unwrap().unwrap();
    let slot = call.into_lease().unwrap().slot();
    pair.caller
        .send_message(new_message(
            &pair.endpoints[0],
            MessageKind::Call,
            2,
            b"body",
        ))
        .unwrap();
    let call = pair.callee.receive_message().unwrap().unwrap();
    pair.callee
        .send_message(
            call.forward_with(Envelope {
                status: 201,
                ..Envelope::new(MessageKind::Answer, 2)
            })
            .unwrap(),
        )
        .unwrap();
    let answer = pair.caller.receive_message().unwrap().unwrap();
    assert_eq!(
        (answer.envelope().call, answer.body_copy()),
        (2, b"body".to_vec())
    );
    assert_eq!(
        answer.into_lease().unwrap().slot(),
        slot,
        "the slot used last is used first"
    );
}

#[test]
fn a_full_ring_returns_the_message() {
    let mut pair = connected_pair();
    for call in 0..u64::from(RING_CAPACITY) {
        assert_eq!(pair.caller.credits(), RING_CAPACITY - call as u32);
        pair.caller
            .send_message(new_message(
                &pair.endpoints[0],
                MessageKind::Call,
                call,
                b"",
            ))
            .unwrap();
    }
    let fault = pair
        .caller
        .send_message(new_message(&pair.endpoints[0], MessageKind::Call, 99, b"x"))
        .unwrap_err();
    assert_eq!(fault.error, ChannelSendError::Full);
    assert!(!pair.caller.request_wakeup());
    drop(pair.callee.receive_message().unwrap().unwrap());
    pair.callee.flush_batch();
    pair.caller.send_message(fault.message.unwrap()).unwrap();
    let calls: Vec<u64> = std::iter::from_fn(|| pair.callee.receive_message().unwrap())
        .map(|call| call.envelope().call)
        .collect();
    assert_eq!(calls, (1..16).chain([99]).collect::<Vec<_>>());
}

#[test]
fn calls_that_a_dead_callee_did_not_receive_are_reclaimed() {
    let mut pair = connected_pair();
    pair.caller
        .send_message(new_message(&pair.endpoints[0], MessageKind::Call, 1, b""))
        .unwrap();
    pair.caller
        .send_message(new_message(&pair.endpoints[0], MessageKind::Call, 2, b""))
        .unwrap();
    let taken = pair.callee.receive_message().unwrap().unwrap();
    std::mem::forget(taken); // it dies with it
    pair.channel.close_with(ChannelState::CalleeDead);
    pair.caller.flush_batch();
    let swept = reclaim::sweep_pool(&pair.pool, |p| p == endpoint_id(1), |_, _, _, _| false);
    assert_eq!((swept.freed, reclaim::slot_usage(&pair.pool).len()), (1, 0));
    let fault = pair
        .caller
        .send_message(new_message(&pair.endpoints[0], MessageKind::Call, 3, b""))
        .unwrap_err();
    assert_eq!(
        fault.error,
        ChannelSendError::Closed(ChannelState::CalleeDead)
    );
    assert_eq!(
        pair.caller.receive_message().unwrap_err(),
        ChannelReceiveError::Closed(ChannelState::CalleeDead)
    );
}

#[test]
fn messages_of_a_dead_caller_still_arrive() {
    let mut pair = connected_pair();
    pair.caller
        .send_message(new_message(
            &pair.endpoints[0],
            MessageKind::Event,
            1,
            b"last words",
        ))
        .unwrap();
    let lost = pair.endpoints[0]
        .claim_slot(256)
        .unwrap()
        .offer_to(endpoint_id(2))
        .unwrap();
    std::mem::forget(lost); // it dies between offering and pushing
    pair.channel.close_with(ChannelState::CallerDead);
    let in_ring = |_, _, slot, generation| {
        pair.channel
            .contains_slot(ChannelSide::Caller, slot, generation)
    };
    let swept = reclaim::sweep_pool(&pair.pool, |p| p == endpoint_id(2), in_ring);
    assert_eq!((swept.freed, swept.in_flight), (1, 1));
    assert_eq!(
        pair.callee.receive_message().unwrap().unwrap().body_copy(),
        b"last words"
    );
    assert_eq!(
        pair.callee.receive_message().unwrap_err(),
        ChannelReceiveError::Closed(ChannelState::CallerDead)
    );
    assert!(reclaim::slot_usage(&pair.pool).is_empty());
}

/// A caller that writes in the ring whatever it likes.
struct ForgingCaller {
    victims: ConnectedPair,
    region: Arc<Region>,
    tail: u32,
}

impl ForgingCaller {
    fn new() -> Self {
        let pair = connected_pair();
        let bytes = nearpath_shm::channel::channel_bytes(RING_CAPACITY) as usize;
        let region = Region::open_sealed(
            pair.channel.as_fd().try_clone_to_owned().unwrap(),
            bytes,
            MapAccess::Write,
        )
        .unwrap();
        Self {
            victims: pair,
            region,
            tail: 0,
        }
    }

    fn push_forged(&mut self, descriptor: Descriptor) {
        self.region.write_bytes(
            4096 + 192 + 16 * u64::from(self.tail % RING_CAPACITY),
            &descriptor.to_bytes(),
        );
        self.tail = self.tail.wrapping_add(1);
        self.region.write_bytes(4096, &self.tail.to_le_bytes());
    }

    fn expect_refusal(mut self, descriptor: Descriptor) -> ChannelReceiveError {
        self.push_forged(descriptor);
        let fault = self.victims.callee.receive_message().unwrap_err();
        assert_eq!(self.victims.channel.state(), ChannelState::Broken);
        assert_eq!(
            self.victims.callee.receive_message().unwrap_err(),
            ChannelReceiveError::Closed(ChannelState::Broken)
        );
        assert_eq!(self.victims.endpoints[1].held_bytes(), 0);
        fault
    }

    /// A slot that the caller has rightly offered, with this much written in it.
    fn offer_slot(&self, bytes: &[u8]) -> Descriptor {
        let mut lease = self.victims.endpoints[0].claim_slot(256).unwrap();
        lease.write_bytes(0, bytes);
        let offer = lease.offer_to(endpoint_id(2)).unwrap();
        let descriptor = offer.descriptor(0, 256);
        offer.confirm_pushed();
        descriptor
    }
}

#[test]
fn forged_descriptors_are_refused() {
    let refused = |change: fn(&mut Descriptor)| {
        let forger = ForgingCaller::new();
        let mut descriptor = forger.offer_slot(&Envelope::new(MessageKind::Call, 1).to_bytes());
        change(&mut descriptor);
        matches!(
            forger.expect_refusal(descriptor),
            ChannelReceiveError::Refused(_)
        )
    };
    assert!(refused(|d| d.slot = SlotId::new(2, 0)));
    assert!(refused(|d| d.slot = SlotId::new(0, 64)));
    assert!(refused(|d| d.slot = SlotId(u32::MAX)));
    assert!(refused(|d| d.slot = SlotId::new(0, 1)));
    assert!(refused(|d| d.generation += 1));
    assert!(refused(|d| d.generation = 0));
    assert!(refused(|d| d.offset = 4));
    assert!(refused(|d| d.offset = 8));
    assert!(refused(|d| d.length = 257));
    assert!(refused(|d| d.length = 63));
    assert!(refused(|d| (d.offset, d.length) = (u32::MAX - 7, 64)));
}

#[test]
fn descriptors_offered_by_or_to_others_are_refused() {
    let not_offered = ChannelReceiveError::Refused(AcceptOfferError::NotOffered);
    let forger = ForgingCaller::new();
    let third = PoolEndpoint::new(Arc::clone(&forger.victims.pool), endpoint_id(3), u64::MAX);
    let offer = third
        .claim_slot(256)
        .unwrap()
        .offer_to(endpoint_id(2))
        .unwrap();
    let stolen = offer.descriptor(0, 64);
    offer.confirm_pushed();
    assert_eq!(
        forger.expect_refusal(stolen),
        not_offered,
        "offered by somebody else"
    );

    let forger = ForgingCaller::new();
    let offer = forger.victims.endpoints[0]
        .claim_slot(256)
        .unwrap()
        .offer_to(endpoint_id(3))
        .unwrap();
    let stolen = offer.descriptor(0, 64);
    offer.confirm_pushed();
    assert_eq!(
        forger.expect_refusal(stolen),
        not_offered,
        "offered to somebody else"
    );

    let mut forger = ForgingCaller::new();
    let used = forger.offer_slot(&Envelope::new(MessageKind::Call, 1).to_bytes());
    forger.push_forged(used);
    drop(forger.victims.callee.receive_message().unwrap().unwrap());
    assert_eq!(
        forger.expect_refusal(used),
        not_offered,
        "from an earlier life"
    );
}

#[test]
fn malformed_messages_are_refused_and_their_slots_freed() {
    let forger = ForgingCaller::new();
    let pool = Arc::clone(&forger.victims.pool);
    let descriptor = forger.offer_slot(&[9; 64]);
    assert_eq!(
        forger.expect_refusal(descriptor),
        ChannelReceiveError::Malformed(EnvelopeError::Version)
    );
    assert!(reclaim::slot_usage(&pool).is_empty());
}

#[test]
fn an_impossible_ring_index_breaks_the_channel() {
    let mut forger = ForgingCaller::new();
    forger
        .region
        .write_bytes(4096, &(RING_CAPACITY + 1).to_le_bytes());
    assert!(matches!(
        forger.victims.callee.receive_message(),
        Err(ChannelReceiveError::Poisoned(_))
    ));
    let mut forger = ForgingCaller::new();
    forger.region.write_bytes(4096 + 64, &1u32.to_le_bytes());
    for _ in 0..RING_CAPACITY {
        let _ = forger.victims.caller.send_message(new_message(
            &forger.victims.endpoints[0],
            MessageKind::Call,
            1,
            b"",
        ));
    }
    let fault = forger.victims.caller.send_message(new_message(
        &forger.victims.endpoints[0],
        MessageKind::Call,
        1,
        b"",
    ));
    assert!(
        fault.is_ok(),
        "a head that claims room lies about the consumer's own entries only"
    );
    forger.region.write_bytes(4096 + 64, &99u32.to_le_bytes());
    let fault = forger
        .victims
        .caller
        .send_message(new_message(
            &forger.victims.endpoints[0],
            MessageKind::Call,
            1,
            b"",
        ))
        .unwrap_err();
    assert_eq!(fault.error, ChannelSendError::Closed(ChannelState::Broken));
}

/// A writer that goes on writing after it has sent: the receiver works with its copy.
#[test]
fn a_write_after_the_send_does_not_change_the_copy() {
    let mut forger = ForgingCaller::new();
    let descriptor = forger.offer_slot(
        &Envelope {
            total: 0,
            ..Envelope::new(MessageKind::Call, 5)
        }
        .to_bytes(),
    );
    forger.push_forged(descriptor);
    let call = forger.victims.callee.receive_message().unwrap().unwrap();
    let pool = &forger.victims.pool;
    let hostile = Region::open_sealed(
        pool.as_fd().try_clone_to_owned().unwrap(),
        pool.region_bytes(),
        MapAccess::Write,
    )
    .unwrap();
    let at = pool.geometry().slot_offset(descriptor.slot).unwrap();
    hostile.write_bytes(at, &[0xff; 256]);
    assert_eq!(
        (call.envelope().call, call.envelope().head, call.body_len()),
        (5, 0, 0)
    );
    assert_eq!(call.copy_head(&mut Vec::new()).unwrap().count(), 0);
}

#[test]
fn parts_and_flags_arrive() {
    let mut pair = connected_pair();
    let part = Envelope {
        flags: flag::MORE,
        total: 10_000,
        ..Envelope::new(MessageKind::Part, 3)
    };
    let mut draft = MessageDraft::new(pair.endpoints[0].claim_slot(4096).unwrap());
    draft
        .append_body(&vec![1; draft.body_capacity() as usize])
        .unwrap();
    assert!(draft.append_body(&[1]).is_err() && draft.add_field("late", b"").is_err());
    pair.caller.send_message(draft.finish(part)).unwrap();
    let part = pair.callee.receive_message().unwrap().unwrap();
    assert!(part.envelope().has_flag(flag::MORE) && !part.envelope().has_flag(flag::PARTS));
    assert_eq!(
        (part.body_len(), part.envelope().total),
        (4096 - 64, 10_000)
    );
}

#[test]
fn a_wakeup_cell_wakes_its_thread() {
    for kind in [
        wakeup_cell::WakeupKind::Futex,
        wakeup_cell::WakeupKind::Eventfd,
    ] {
        let mut pair = connected_pair();
        pair.cells[1] = WakeupCell::create(kind, SpinPolicy::default()).unwrap();
        let signal = pair.cells[1].wakeup_signal();
        pair.caller = pair.channel.attach_end(
            ChannelSide::Caller,
            Arc::clone(&pair.endpoints[0]),
            endpoint_id(2),
            signal,
        );
        let [_, mut cell] = pair.cells;
        let mut callee = pair.callee;
        let thread = std::thread::spawn(move || {
            while !callee.has_incoming() {
                cell.wait_until(0, Some(Duration::from_secs(30)), || callee.has_incoming());
            }
            callee.receive_message().unwrap().unwrap().body_copy()
        });
        pair.caller
            .send_message(new_message(
                &pair.endpoints[0],
                MessageKind::Call,
                1,
                b"wake up",
            ))
            .unwrap();
        pair.caller.flush_batch();
        assert_eq!(thread.join().unwrap(), b"wake up");
    }
}

#[test]
fn a_wakeup_cell_works_in_an_event_loop() {
    let cell = WakeupCell::create_nonblocking(SpinPolicy::default()).unwrap();
    let readable = || {
        let mut fds = [rustix::event::PollFd::from_borrowed_fd(
            cell.eventfd().unwrap(),
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(
            &mut fds,
            Some(&rustix::fs::Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            }),
        )
        .unwrap()
            == 1
    };
    assert!(
        !cell.announce_sleep(|| true) && !cell.wakeup_signal().wake(),
        "awake: nobody rings"
    );
    assert!(cell.announce_sleep(|| false));
    assert!(
        cell.wakeup_signal().wake() && !cell.wakeup_signal().wake(),
        "one ring a sleep"
    );
    assert!(readable());
    cell.finish_sleep();
    assert!(!readable() && !cell.wakeup_signal().wake());
    assert!(cell.wakeup_signal().last_core() > 0);
}

#[test]
fn regions_of_another_kind_are_refused() {
    let pair = connected_pair();
    let fd = || pair.channel.as_fd().try_clone_to_owned().unwrap();
    assert!(Channel::open_region(fd(), RING_CAPACITY).is_ok());
    assert!(Channel::open_region(fd(), 2 * RING_CAPACITY * 16).is_err());
    assert!(Channel::open_region(fd(), 15).is_err());
    assert!(
        SlotPool::open_region(
            fd(),
            nearpath_shm::channel::channel_bytes(RING_CAPACITY) as usize
        )
        .is_err()
    );
    assert!(WakeupCell::open_region(fd(), None, SpinPolicy::default()).is_err());
    let pool = pair.pool.as_fd().try_clone_to_owned().unwrap();
    assert_eq!(
        SlotPool::open_region(pool, pair.pool.region_bytes())
            .unwrap()
            .geometry(),
        pair.pool.geometry()
    );
}
